# The two images with Docker: docker build --target runtime -t sluice/runtime:0.1.0 .
#                             docker build --target controller -t sluice/controller:0.1.0 .
#
# `cargo xtask image` makes the same images without Docker, and here it says what is in them, so that both agree.
# The build needs a C compiler, make and perl for Kafka's client and TLS; the base image has them.
FROM rust:1.95-bookworm AS build
WORKDIR /sluice
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/sluice/target \
    cargo xtask image --filesystem /images

FROM scratch AS runtime
COPY --from=build /images/runtime/ /
ENV PATH=/usr/local/bin
USER 65532:65532
LABEL org.opencontainers.image.title="Sluice's JobManager and TaskManager" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["/usr/local/bin/sluice"]

FROM scratch AS controller
COPY --from=build /images/controller/ /
ENV PATH=/usr/local/bin
USER 65532:65532
LABEL org.opencontainers.image.title="Sluice's controller" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["/usr/local/bin/sluice-controller"]
