#![allow(clippy::unwrap_used)]

use http::header::COOKIE;
use serde_json::Value;

use super::*;

async fn get(web: &Web, address: &str, cookie: Option<&str>) -> (http::response::Parts, String) {
    let mut request = http::Request::new(());
    *request.uri_mut() = address.parse().unwrap();
    if let Some(cookie) = cookie {
        request.headers_mut().insert(COOKIE, HeaderValue::from_str(cookie).unwrap());
    }
    let (head, body) = web.get(request.into_parts().0).await.into_parts();
    let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    (head, String::from_utf8(body.to_vec()).unwrap())
}

fn page() -> (Web, String) {
    let web = Web::new(Daemon::start_embedded().unwrap()).unwrap();
    let cookie = web.session.cookie().to_str().unwrap().split(';').next().unwrap().to_owned();
    (web, cookie)
}

#[tokio::test]
async fn everything_needs_the_token() {
    let (web, cookie) = page();
    let paths = FILES.iter().map(|(path, ..)| *path);
    for path in paths.chain(["/api/overview"]) {
        let (refused, text) = get(&web, path, None).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
        assert!(text.contains("`millstream web`"), "{text}");
        let (answered, _) = get(&web, path, Some(&cookie)).await;
        assert_eq!(answered.status, StatusCode::OK, "{path}");
        for (name, value) in FIELDS {
            assert_eq!(answered.headers[&name], value);
            assert_eq!(refused.headers[&name], value);
        }
    }
    for path in ["/api/jobs/a", "/nothing"] {
        assert_eq!(get(&web, path, None).await.0.status, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(get(&web, path, Some(&cookie)).await.0.status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn the_token_in_the_address_becomes_a_cookie() {
    let (web, cookie) = page();
    let (head, _) = get(&web, &format!("/?token={}", web.session.token()), None).await;
    assert_eq!(
        (head.status, &head.headers[LOCATION]),
        (StatusCode::SEE_OTHER, &HeaderValue::from_static("/"))
    );
    let set = head.headers[SET_COOKIE].to_str().unwrap();
    assert!(set.starts_with(&cookie) && set.ends_with("; HttpOnly; SameSite=Strict"), "{set}");
    let (head, _) = get(&web, "/?token=0123456789abcdef0123456789abcdef", None).await;
    assert_eq!(head.status, StatusCode::FORBIDDEN);
    assert!(!head.headers.contains_key(SET_COOKIE));
}

#[tokio::test]
async fn the_overview_of_an_idle_daemon_has_no_jobs() {
    let (web, cookie) = page();
    let (head, text) = get(&web, "/api/overview", Some(&cookie)).await;
    assert_eq!(head.headers["content-type"], "application/json");
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["jobs"], Value::Array(Vec::new()));
    assert_eq!(document["snapshot"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_page_loads_only_files_that_exist() {
    for (path, _, text) in FILES {
        let quoted = text.split('"').skip(1).step_by(2);
        for file in quoted.filter(|quoted| quoted.ends_with(".js") || quoted.ends_with(".css")) {
            let name = file.trim_start_matches("./").trim_start_matches('/');
            assert!(FILES.iter().any(|(known, ..)| *known == format!("/{name}")), "{path} loads {file}");
        }
        assert!(!text.contains("https:") && !text.contains("innerHTML"), "{path}");
    }
}

#[tokio::test]
async fn the_page_is_opened_once_and_then_stays_where_it_is() {
    let (web, _) = page();
    let url = web.open(0).unwrap();
    assert_eq!(url.rsplit_once("/?token=").unwrap().1, web.session.token());
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    assert_eq!(web.open(0).unwrap(), url);
    assert_eq!(web.open(40_000).unwrap(), url, "the port has no effect");
    let taken = web.address.lock().unwrap().unwrap().port();

    let (other, _) = page();
    let error = |port: u32| format!("{:#}", other.open(port).unwrap_err());
    assert_eq!(error(80), "the port is 80; choose one from 1024 to 65535");
    assert_eq!(error(70_000), "the port is 70000; choose one from 1024 to 65535");
    assert!(error(taken.into()).contains("choose another port"));
    assert!(other.open(0).is_ok(), "an error leaves it closed");
}
