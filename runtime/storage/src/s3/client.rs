//! Builds the SDK's client from settings: TLS, credentials, no repetition, no optional checksums.

use super::{S3Credentials, S3Settings};
use crate::{StoreDeadlines, StoreFailure, unsuitable};
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedCredentialsProvider, SharedHttpClient, StalledStreamProtectionConfig,
};
use aws_sdk_s3::{Client, Config};
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;

const DEFAULT_REGION: &str = "us-east-1";

pub(super) fn build_client(settings: &S3Settings) -> Result<Client, StoreFailure> {
    let http = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let region = Region::new(settings.region.clone().unwrap_or_else(|| DEFAULT_REGION.to_owned()));
    let credentials = match &settings.credentials {
        Some(credentials) => SharedCredentialsProvider::new(fixed_credentials(credentials)),
        None => SharedCredentialsProvider::new(ambient_credentials(settings, &http, &region)),
    };
    let mut config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(region)
        .credentials_provider(credentials)
        .http_client(http)
        .force_path_style(settings.path_style)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts(settings.deadlines))
        // Its grace periods exceed our deadlines, which cover bodies too.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    if let Some(endpoint) = &settings.endpoint {
        config = config.endpoint_url(validate_endpoint(endpoint)?);
    }
    Ok(Client::from_conf(config.build()))
}

fn validate_endpoint(endpoint: &str) -> Result<&str, StoreFailure> {
    let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    match host {
        Some(host) if !host.is_empty() && !host.starts_with('/') && !host.contains(char::is_whitespace) => Ok(endpoint),
        _ => Err(unsuitable(format!(
            "storageOptions.endpoint '{endpoint}' is no URL of a server; write http://HOST:PORT or https://HOST"
        ))),
    }
}

fn timeouts(deadlines: StoreDeadlines) -> TimeoutConfig {
    TimeoutConfig::builder().connect_timeout(deadlines.connect).build()
}

fn fixed_credentials(credentials: &S3Credentials) -> Credentials {
    Credentials::new(
        &credentials.access_key_id,
        &credentials.secret_access_key,
        credentials.session_token.clone(),
        None,
        "settings",
    )
}

/// The usual places, in the usual order. An instance's role is asked for only on Amazon's own S3: elsewhere the
/// question would only cost its timeouts and hide that credentials are missing.
fn ambient_credentials(settings: &S3Settings, http: &SharedHttpClient, region: &Region) -> CredentialsProviderChain {
    let provider = ProviderConfig::default()
        .with_behavior_version(Some(BehaviorVersion::latest()))
        .with_http_client(http.clone())
        .with_region(Some(region.clone()))
        .with_timeout_config(timeouts(settings.deadlines));
    let chain = CredentialsProviderChain::first_try("Environment", EnvironmentVariableCredentialsProvider::new())
        .or_else("Profile", ProfileFileCredentialsProvider::builder().configure(&provider).build())
        .or_else("WebIdentityToken", WebIdentityTokenCredentialsProvider::builder().configure(&provider).build())
        .or_else("Container", EcsCredentialsProvider::builder().configure(&provider).build());
    if settings.endpoint.is_some() {
        return chain;
    }
    chain.or_else("Instance", ImdsCredentialsProvider::builder().configure(&provider).build())
}
