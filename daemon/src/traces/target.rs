//! Where traces are sent: the configuration's `otlp_endpoint`, or OpenTelemetry's environment variables.

use http::Uri;

/// The OpenTelemetry collector that receives traces over OTLP/gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceTarget {
    endpoint: String,
}

impl TraceTarget {
    /// The target that `key` of the configuration names. An empty key switches traces off. Without the key, the
    /// variables that `variable` reads decide, as OpenTelemetry's specification defines, except that traces are off
    /// if no variable names an endpoint.
    ///
    /// # Errors
    /// When the address is not usable. The message names the key or the variable.
    pub(crate) fn find(
        key: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        let is = |name: &str, value: &str| variable(name).is_some_and(|it| it.eq_ignore_ascii_case(value));
        if is("OTEL_SDK_DISABLED", "true") {
            return Ok(None);
        }
        if let Some(endpoint) = key {
            return Self::new("otlp_endpoint", endpoint);
        }
        if is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        for name in ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"] {
            // The specification treats an empty variable as unset.
            if let Some(endpoint) = variable(name).filter(|endpoint| !endpoint.is_empty()) {
                return Self::new(name, &endpoint);
            }
        }
        Ok(None)
    }

    /// The address, as `http://HOST:PORT`.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Whether TLS protects the connection.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.endpoint.starts_with("https:")
    }

    fn new(name: &str, endpoint: &str) -> Result<Option<Self>, String> {
        if endpoint.is_empty() {
            return Ok(None);
        }
        let uri = endpoint.parse::<Uri>().ok();
        let uri =
            uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
        let Some(uri) = uri else {
            let shown = millstream_io::redact(endpoint);
            return Err(format!(
                "`{name}`: \"{shown}\" is not the address of an OpenTelemetry collector; write \
                 \"http://HOST:4317\", or https:// with TLS"
            ));
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(format!(
                "`{name}`: the address must not contain a password; set OTEL_EXPORTER_OTLP_HEADERS instead"
            ));
        }
        Ok(Some(Self { endpoint: endpoint.to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(key: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Ok(TraceTarget::find(key, variable)?.map(|target| target.endpoint))
    }

    #[test]
    fn the_key_wins_over_the_environment_and_nothing_means_off() {
        let of_all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317");
        let of_traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://b:4317");
        let off = ("OTEL_TRACES_EXPORTER", "none");
        let at = |endpoint: &str| Ok(Some(endpoint.to_owned()));
        assert_eq!(found(None, &[]), Ok(None));
        assert_eq!(found(Some(""), &[of_all]), Ok(None));
        assert_eq!(found(None, &[of_all]), at("http://a:4317"));
        assert_eq!(found(None, &[of_all, of_traces]), at("https://b:4317"));
        assert_eq!(found(None, &[of_all, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")]), at("http://a:4317"));
        assert_eq!(found(None, &[of_all, off]), Ok(None));
        assert_eq!(found(Some("http://[::1]:4317"), &[of_all, off]), at("http://[::1]:4317"));
        assert_eq!(found(Some("http://c"), &[("OTEL_SDK_DISABLED", "True")]), Ok(None));
    }

    #[test]
    fn a_useless_address_is_refused_with_its_origin() {
        for endpoint in ["collector:4317", "127.0.0.1:4317", "ftp://a", "http://", "a b"] {
            let error = found(Some(endpoint), &[]).err().unwrap_or_default();
            assert!(error.contains("`otlp_endpoint`") && error.contains("http://HOST:4317"), "{error}");
        }
        let variable = ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector");
        let error = found(None, &[variable]).err().unwrap_or_default();
        assert!(error.contains("`OTEL_EXPORTER_OTLP_ENDPOINT`"), "{error}");
        let error = found(Some("http://me:sesame@a:4317"), &[]).err().unwrap_or_default();
        assert!(error.contains("OTEL_EXPORTER_OTLP_HEADERS") && !error.contains("sesame"), "{error}");
    }
}
