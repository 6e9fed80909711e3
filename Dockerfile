# prefix-router and, for trying it out, its simulated vLLM worker (python -m loadtest.simworker). No secret belongs in
# an image: keys come at run time, as ROUTER_AUTH__... variables or in a mounted file.

FROM python:3.11-slim AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY router router
COPY loadtest loadtest
# Between commas, what else is wanted: --build-arg EXTRAS=otel
ARG EXTRAS=""
# The request path as machine code, as scripts/compile makes it: what compiles it reads the types of all that it uses.
RUN pip install --no-cache-dir --constraint constraints.txt . mypy setuptools types-PyYAML \
    && PREFIX_ROUTER_COMPILE=1 pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .
# Wheels only, so that the second step installs what the first one has chosen and nothing else.
# What is installed above to compile with must not count as there already.
RUN pip wheel --no-cache-dir --wheel-dir /wheels --constraint constraints.txt \
    "$(echo /wheels/prefix_router-*.whl)${EXTRAS:+[$EXTRAS]}" \
    && pip install --no-cache-dir --no-index --ignore-installed --find-links /wheels --prefix /install \
    "prefix-router${EXTRAS:+[$EXTRAS]}"

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin router
COPY --from=build /install /usr/local
# The host also as a variable, for those who give `serve` flags of their own.
ENV PYTHONUNBUFFERED=1 ROUTER_HOST=0.0.0.0
USER 10001
WORKDIR /tmp
EXPOSE 8080
# Python has what it takes; curl would be one more package to keep up to date.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('ROUTER_PORT', '8080')}/health\", timeout=2)"]
# It drains on SIGTERM, which takes up to timeouts.drain_delay + timeouts.drain seconds: give it those.
STOPSIGNAL SIGTERM
ENTRYPOINT ["prefix-router"]
CMD ["serve", "--host", "0.0.0.0"]
