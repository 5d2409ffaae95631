//! The standard services of a gRPC server: health checks, and reflection, by which clients such as grpcurl learn the API.
//!
//! Both are for viewers, too: they say whether the daemon serves, and what its API is.

use anyhow::{Context, Result};
use millstream_control::DESCRIPTORS;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health as HealthService, HealthServer};
use tonic_health::server::HealthReporter;
use tonic_reflection::server::{Builder, v1, v1alpha};

/// The control API, as health checks and reflection name it.
pub(crate) const CONTROL: &str = "millstream.control.v1.Control";

/// The names of the standard services.
pub(crate) const SERVICES: [&str; 3] = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

/// What health checks report: for the daemon as a whole, whose name is empty, and for the control API.
#[derive(Clone)]
pub(crate) struct Health(HealthReporter);

impl Health {
    /// A daemon that serves, and the service that says so.
    pub(crate) async fn serving() -> (Self, HealthServer<impl HealthService>) {
        let (reporter, service) = tonic_health::server::health_reporter();
        let health = Self(reporter);
        health.report(ServingStatus::Serving).await;
        (health, service)
    }

    /// From now on, the daemon is stopping.
    pub(crate) async fn stopping(&self) {
        self.report(ServingStatus::NotServing).await;
    }

    async fn report(&self, status: ServingStatus) {
        for service in ["", CONTROL] {
            self.0.set_service_status(service, status).await;
        }
    }
}

/// Reflection of the control API and of the health service.
///
/// # Errors
/// When the description of an API is damaged.
pub(crate) fn reflection() -> Result<v1::ServerReflectionServer<impl v1::ServerReflection>> {
    descriptions().build_v1().context("the description of the API")
}

/// As [`reflection`], in the protocol of older clients.
///
/// # Errors
/// When the description of an API is damaged.
pub(crate) fn reflection_alpha() -> Result<v1alpha::ServerReflectionServer<impl v1alpha::ServerReflection>> {
    descriptions().build_v1alpha().context("the description of the API")
}

fn descriptions() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
