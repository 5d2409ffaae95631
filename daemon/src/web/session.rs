//! Who may see the web page: a browser that has this daemon's token.
//!
//! The token is in the address that the control socket hands out. The first request replaces it by a cookie, so that it is
//! neither in the address bar nor sent to other pages. Scripts cannot read the cookie, and requests that other sites
//! cause do not carry it. Cookies are shared by all ports of a host, which is why the cookie's name differs by daemon.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use http::header::{COOKIE, HeaderMap, HeaderValue};

/// A token of 128 random bits, valid while the daemon runs.
pub(super) struct Session {
    token: String,
    cookie: String,
}

impl Session {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { token: random_hex::<16>()?, cookie: format!("millstream-{}", random_hex::<4>()?) })
    }

    /// The token: 32 hexadecimal digits.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Whether a request with these header fields has the token.
    pub(super) fn admits(&self, fields: &HeaderMap) -> bool {
        let cookies = fields.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.split_once('='));
        pairs.any(|(name, value)| name.trim() == self.cookie && self.is_token(value.trim()))
    }

    /// Whether the query of an address has the token.
    pub(super) fn is_opened_by(&self, query: &str) -> bool {
        query.split('&').any(|pair| pair.strip_prefix("token=").is_some_and(|value| self.is_token(value)))
    }

    /// The value of `Set-Cookie`. The cookie lasts until the browser is closed.
    pub(super) fn cookie(&self) -> HeaderValue {
        let text = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie, self.token);
        // A name and digits.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    /// Compares in a time that does not depend on where the texts differ.
    fn is_token(&self, text: &str) -> bool {
        let (text, token) = (text.as_bytes(), self.token.as_bytes());
        let differences = text.iter().zip(token).fold(0, |all, (one, other)| all | (one ^ other));
        text.len() == token.len() && differences == 0
    }
}

/// `N` random bytes in hexadecimal digits.
fn random_hex<const N: usize>() -> Result<String> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    ensure!(filled.context("random numbers for the web page's token")? == N, "too few random numbers");
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn cookies(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(text).unwrap())])
    }

    #[test]
    fn a_browser_is_admitted_by_the_cookie_alone() {
        let session = Session::new().unwrap();
        let cookie = session.cookie();
        let pair = cookie.to_str().unwrap().split(';').next().unwrap().to_owned();
        assert!(session.admits(&cookies(&pair)));
        assert!(session.admits(&cookies(&format!("a=b; {pair}; c"))));
        assert!(!session.admits(&HeaderMap::new()));
        assert!(!session.admits(&cookies(&format!("{pair}0"))));
        assert!(!session.admits(&cookies(&pair[..pair.len() - 1])));
        assert!(!session.admits(&cookies(&format!("millstream-0={}", session.token()))));
        let (name, _) = pair.split_once('=').unwrap();
        assert!(!session.admits(&cookies(&format!("{name}="))));
    }

    #[test]
    fn an_address_opens_with_this_daemons_token_only() {
        let (session, other) = (Session::new().unwrap(), Session::new().unwrap());
        assert_eq!(session.token().len(), 32);
        assert!(session.is_opened_by(&format!("token={}", session.token())));
        assert!(session.is_opened_by(&format!("a=1&token={}", session.token())));
        for query in
            ["", "token=", "token", &format!("token={}", other.token()), &format!("t={}", session.token())]
        {
            assert!(!session.is_opened_by(query), "{query}");
        }
    }
}
