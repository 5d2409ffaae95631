//! Where a server may redirect a request.
//!
//! A redirect makes this host send a request to an address that the server chooses, so a hostile server could reach
//! what only this host can: a metadata server, which hands out credentials, or a service on the loopback interface.
//! Hence these rules:
//!
//! * Only requests that read are redirected. A write that is redirected fails.
//! * `https` is not redirected to `http`.
//! * A redirect to another host must not lead to an address of this host (loopback), of its link, or of a metadata
//!   server, whether written as a number or by a name. The one exception: from loopback to loopback, for emulators.
//! * Another server receives only the headers in [`FORWARDED`], in particular no credentials. A server is a scheme,
//!   host and port.
//!
//! With a proxy, names are resolved by the proxy, which then has to enforce the third rule for names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::header::{
    ACCEPT, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, LOCATION, RANGE,
};
use http::{HeaderMap, Method, Uri};
use object_store::client::{HttpError, HttpRequest, HttpRequestBody, HttpResponse};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::Permanent;

/// The headers that another server receives. A list of those that it must not receive would never be complete.
const FORWARDED: [HeaderName; 7] = [
    ACCEPT,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE,
    RANGE,
    HeaderName::from_static("depth"),
];

/// Metadata servers outside the link-local ranges: of AWS over IPv6, Azure, and Alibaba.
const METADATA_SERVERS: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

/// A request that was sent, without its body.
pub(super) struct Sent {
    method: Method,
    pub(super) uri: Uri,
    headers: HeaderMap,
}

impl Sent {
    pub(super) fn of(request: &HttpRequest) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        }
    }

    /// The request to send next if `response` is a redirect.
    pub(super) fn redirected(self, response: &HttpResponse) -> Result<Option<HttpRequest>, HttpError> {
        let reads = matches!(self.method.as_str(), "GET" | "HEAD" | "PROPFIND");
        let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
        let Some(location) = response.headers().get(LOCATION).filter(|_| reads && redirects) else {
            return Ok(None);
        };
        let location = String::from_utf8_lossy(location.as_bytes());
        Ok(Some(self.follow(&location)?))
    }

    fn follow(mut self, location: &str) -> Result<HttpRequest, Permanent> {
        let unusable = || Permanent("redirected to an invalid address".to_owned());
        let from = Url::parse(&self.uri.to_string()).map_err(|_| unusable())?;
        let mut to = from.join(location).map_err(|_| unusable())?;
        to.set_fragment(None);
        // A user name and password would become credentials.
        if to.set_username("").is_err() || to.set_password(None).is_err() {
            return Err(unusable());
        }
        check(&from, &to)?;
        if from.origin() != to.origin() {
            self.headers = FORWARDED
                .into_iter()
                .filter_map(|name| Some((name.clone(), self.headers.get(name)?.clone())))
                .collect();
        }
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = to.as_str().parse().map_err(|_| unusable())?;
        *request.headers_mut() = self.headers;
        Ok(request)
    }
}

/// Rejects forbidden redirects, except those by a name that resolves to a forbidden address; see [`Resolver`].
fn check(from: &Url, to: &Url) -> Result<(), Permanent> {
    let (before, host) = (from.host_str().unwrap_or_default(), to.host_str().unwrap_or_default());
    match to.scheme() {
        "https" => {}
        "http" if from.scheme() == "http" => {}
        scheme => return Err(refused(host, &format!("it leads from {} to {scheme}", from.scheme()))),
    }
    if before == host || (is_loopback(before) && is_loopback(host)) {
        return Ok(());
    }
    if is_loopback(host) || number(host).is_some_and(is_forbidden) {
        return Err(refused(host, FORBIDDEN));
    }
    Ok(())
}

const FORBIDDEN: &str = "its address belongs to this host, its link or a metadata server";

fn refused(host: &str, reason: &str) -> Permanent {
    let host: String = host.chars().take(255).collect();
    Permanent(format!("redirected to {host}, which is not permitted: {reason}"))
}

/// The address in the host of a URL.
fn number(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn is_loopback(host: &str) -> bool {
    number(host).map_or_else(|| is_localhost(host), |address| plain(address).is_loopback())
}

/// Whether a name is reserved for loopback (RFC 6761).
fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether a redirect to this address is forbidden.
fn is_forbidden(address: IpAddr) -> bool {
    let address = plain(address);
    let is_near = match address {
        // 0.0.0.0/8 is this host.
        IpAddr::V4(address) => address.is_link_local() || address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
    };
    is_near || address.is_loopback() || address.is_multicast() || METADATA_SERVERS.contains(&address)
}

/// The IPv4 address that an IPv6 address contains: mapped, translated (NAT64, RFC 6052) or tunnelled (6to4).
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = address else { return address };
    let four = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match six.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] if high != 0 => four(high, low),
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => four(high, low),
        [0x2002, high, low, ..] => four(high, low),
        _ => address,
    }
}

/// Resolves the names of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolver {
    Any,
    /// For redirects: fails if the name resolves to a forbidden address. This is the address that is then connected
    /// to, so a name cannot change its meaning in between.
    Foreign,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = *self;
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            // No redirect leads to localhost; so this is a proxy.
            let is_checked = resolver == Self::Foreign && !is_localhost(name.as_str());
            if is_checked && found.iter().any(|address| is_forbidden(address.ip())) {
                return Err(refused(name.as_str(), FORBIDDEN).into());
            }
            Ok(Box::new(shuffled(found).into_iter()) as Addrs)
        })
    }
}

/// Starts at a random address, to spread the load over the servers of a name.
fn shuffled(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if !addresses.is_empty() {
        let first = crate::pause::random() as usize % addresses.len();
        addresses.rotate_left(first);
    }
    addresses
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn follow(from: &str, location: &str) -> Result<(String, Vec<String>), String> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = from.parse().unwrap();
        for name in
            ["range", "if-match", "authorization", "x-amz-security-token", "x-goog-user-project", "host"]
        {
            request.headers_mut().insert(HeaderName::from_static(name), "v".parse().unwrap());
        }
        let next = Sent::of(&request).follow(location).map_err(|error| error.to_string())?;
        let mut names: Vec<String> = next.headers().keys().map(ToString::to_string).collect();
        names.sort();
        Ok((next.uri().to_string(), names))
    }

    #[test]
    fn another_server_receives_no_credentials() {
        for to in ["https://other.example/b?c=1", "https://host.example:8443/b?c=1", "https://me:pw@x/b?c=1"]
        {
            let (uri, headers) = follow("https://host.example/a", to).unwrap();
            assert_eq!(headers, ["if-match", "range"], "{to}");
            assert!(uri.ends_with("/b?c=1") && !uri.contains("pw"), "{uri}");
        }
        for to in ["/b", "b", "//host.example/b", "https://host.example/b#c", "https://HOST.example:443/b"] {
            let (uri, headers) = follow("https://host.example/a", to).unwrap();
            assert_eq!((uri.as_str(), headers.len()), ("https://host.example/b", 6));
        }
    }

    #[test]
    fn no_redirect_leads_to_a_service_of_this_host() {
        for host in [
            "169.254.169.254",
            "127.0.0.1:8080",
            "2130706433",
            "0x7f.1",
            "0.0.0.0",
            "localhost",
            "a.localhost.",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[::ffff:169.254.169.254]",
            "[::127.0.0.1]",
            "[64:ff9b::a9fe:a9fe]",
            "[2002:7f00:1::]",
            "[fd00:ec2::254]",
            "168.63.129.16",
            "224.0.0.1",
        ] {
            for from in ["http://host.example/", "http://10.0.0.1/", "http://93.184.216.34/"] {
                let error = follow(from, &format!("http://{host}/latest")).unwrap_err();
                assert!(error.contains("not permitted"), "{host}: {error}");
            }
        }
        for (from, to) in [
            ("http://127.0.0.1:9000/a", "http://localhost:9001/a"),
            ("http://10.0.0.1/", "http://10.0.0.2/"),
            ("http://host.example/", "http://host.example:81/"),
            ("http://a/", "http://[2001:db8::1]/"),
        ] {
            follow(from, to).unwrap();
        }
        assert!(follow("http://127.0.0.1/", "http://169.254.169.254/").is_err());
    }

    #[test]
    fn a_redirect_does_not_leave_https() {
        assert!(follow("https://a/", "http://a/").unwrap_err().contains("https to http"));
        for to in ["ftp://a/", "file:///etc/passwd", "javascript:0", "https://"] {
            assert!(follow("http://a/", to).is_err(), "{to}");
        }
    }

    #[tokio::test]
    async fn a_name_of_this_host_is_not_resolved_for_a_redirect() {
        let resolve = |resolver: Resolver, name: &str| resolver.resolve(name.parse().unwrap());
        assert!(resolve(Resolver::Any, "127.0.0.1").await.is_ok());
        let error = resolve(Resolver::Foreign, "127.0.0.1").await.err().unwrap();
        assert!(error.downcast_ref::<Permanent>().is_some(), "{error}");
    }
}
