"""All that knows verl's classes, and the turn engine that its agent loops drive."""
