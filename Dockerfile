# Two stages: the first builds a virtual environment from hashed requirements, the second carries
# only that environment. It runs as nobody's user on a read-only file system and writes nothing.
FROM python:3.13.9-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/servingslo && python -m venv /src/builder
# requirements-keda.lock for an image that serves KEDA's external scaler.
ARG REQUIREMENTS=requirements.lock
COPY requirements.lock requirements-keda.lock requirements-build.lock ./
# The locks are complete: what they name is installed and nothing is resolved, so a later release changes nothing.
RUN /opt/servingslo/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r ${REQUIREMENTS}
COPY pyproject.toml README.md LICENSE ./
COPY operator ./operator
RUN /src/builder/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r requirements-build.lock \
 && /src/builder/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /src/dist . \
 && /opt/servingslo/bin/pip install --no-cache-dir --no-deps /src/dist/servingslo-*.whl \
 && /opt/servingslo/bin/pip check \
 && /opt/servingslo/bin/python -m compileall -q /opt/servingslo/lib

FROM python:3.13.9-slim-bookworm
LABEL org.opencontainers.image.title="servingslo" \
      org.opencontainers.image.description="Keeps the latency objectives of LLM and model servers at the least cost" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/servingslo/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1
COPY --from=build /opt/servingslo /opt/servingslo
USER 65532:65532
WORKDIR /
EXPOSE 8080
ENTRYPOINT ["servingslo"]
CMD ["run"]
