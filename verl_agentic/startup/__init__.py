"""What happens when verl loads the plugin: version check, late registrations, recipe search path, early refusals."""
