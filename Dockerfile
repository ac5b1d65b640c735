# The program alone in a small image.
#   docker build -t bessemer:0.2.0 .
#   docker run --rm -v "$PWD:/data" bessemer:0.2.0 run /data/recipe.toml --set run.dir=/data/runs
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked && cp target/release/bessemer /bessemer

FROM debian:bookworm-slim
RUN useradd --uid 10001 --create-home bessemer
COPY --from=build /bessemer /usr/local/bin/bessemer
USER 10001
WORKDIR /data
ENTRYPOINT ["bessemer"]
