# docker build -t hopper .                                                      torch for CPUs
# docker build -t hopper --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#
# Nothing is fetched when a container runs. docs/howto/launch.md says how it is used on Kubernetes.
FROM python:3.11-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
RUN python -m venv /opt/hopper
ENV PATH=/opt/hopper/bin:$PATH
COPY constraints.txt .
RUN pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_INDEX" \
    --extra-index-url https://pypi.org/simple torch
COPY pyproject.toml README.md LICENSE ./
COPY cache_server cache_server
COPY hopper hopper
RUN pip install --no-cache-dir -c constraints.txt .

FROM python:3.11-slim
# numba and torch bring what they need but for OpenMP's runtime.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin hopper
COPY --from=build /opt/hopper /opt/hopper
ENV PATH=/opt/hopper/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/tmp/numba \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT []
CMD ["hopper", "--help"]
