"""Nothing heavy is loaded before it is used."""

import subprocess
import sys

import pytest

HEAVY = ("openai", "anthropic", "httpx2", "pydantic", "genai_prices", "mcp", "xllamacpp", "rich", "typer")
HEAVY_SERVER = ("opentelemetry", "prometheus_client", "fastapi", "starlette", "uvicorn", "jsonschema")


MODULES = ["forkpoint", "forkpoint.llm", "forkpoint.store", "forkpoint.llm.call", "forkpoint.conversation"]


@pytest.mark.parametrize("module", MODULES)
def test_importing_it_loads_no_sdk_no_price_list_and_no_model(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY + HEAVY_SERVER} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", f"import {module} loads {done.stdout.strip()} {done.stderr}"
