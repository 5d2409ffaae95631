#![allow(clippy::unwrap_used)]

use http::header::HeaderValue;

use super::*;

/// The metrics of an idle daemon as they are answered to a request for `path`.
async fn get(path: &str, accept: Option<&'static str>) -> http::Response<String> {
    let mut request = http::Request::new(());
    *request.uri_mut() = path.parse().unwrap();
    if let Some(accept) = accept {
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
    }
    let page = MetricsPage { daemon: Daemon::start_embedded().unwrap() };
    let (head, body) = page.get(request.into_parts().0).await.into_parts();
    let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    http::Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn metrics_are_served_in_the_format_that_the_client_prefers() {
    let plain = get("/metrics", None).await;
    assert_eq!(plain.status(), StatusCode::OK);
    assert_eq!(plain.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(plain.body().contains("\nmillstream_jobs{state=\"queued\"} 0\n"), "{plain:?}");
    let open = get("/metrics", Some("application/openmetrics-text;version=1.0.0")).await;
    assert_eq!(open.headers()["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.body().ends_with("\n# EOF\n"), "{open:?}");
    assert_eq!(get("/", None).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(get("/metrics/", None).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_the_key() {
    let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = format!("{:#}", bind(first.local_addr().unwrap()).unwrap_err());
    assert!(error.starts_with("`metrics_address`: cannot listen on 127.0.0.1:"), "{error}");
}

#[test]
fn the_preferred_format_follows_the_weights() {
    let of = |accept: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        accepted(&headers)
    };
    for open in [
        // Prometheus 2 and 3.
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
         text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.4",
        "text/plain; q=0.2, Application/OpenMetrics-Text",
    ] {
        assert_eq!(of(open), Format::OpenMetrics, "{open}");
    }
    for plain in [
        "*/*",
        "text/html,*/*;q=0.8",
        "application/openmetrics-text;q=0.1,text/plain",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;q=x",
        ";;=,,",
    ] {
        assert_eq!(of(plain), Format::Prometheus, "{plain}");
    }
    assert_eq!(accepted(&HeaderMap::new()), Format::Prometheus);
}
