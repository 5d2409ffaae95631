//! `millstream web`: prints the address of the daemon's web page.

use crate::arguments::WebPage;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(arguments: WebPage, context: &Context) -> Result<(), Failure> {
    let port = arguments.port.unwrap_or(0);
    let page = to_daemon(context).await?.web(port.into()).await?;
    context.answer(&page, || format!("{}\n", page.url))?;
    let served = port_of(&page.url);
    if let (Some(wanted), Some(served)) = (arguments.port, served)
        && wanted != served
    {
        context.screen.note(&format!("the page is served on port {served} already"));
    }
    let session = std::env::var("SSH_CONNECTION").unwrap_or_default();
    if let (Some(port), Some(host)) = (served, host_of(&session)) {
        let tunnel = format!("for a browser on your own machine: ssh -N -L {port}:127.0.0.1:{port} {host}");
        context.screen.note(&tunnel);
    }
    Ok(())
}

/// The address by which an SSH client reached this host: `$SSH_CONNECTION` has the client's address and port, then the
/// server's.
fn host_of(session: &str) -> Option<&str> {
    session.split_whitespace().nth(2)
}

/// The port of an address such as `http://127.0.0.1:9465/?token=...`.
fn port_of(url: &str) -> Option<u16> {
    let authority = url.strip_prefix("http://")?.split('/').next()?;
    authority.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_behind_names_and_addresses() {
        assert_eq!(port_of("http://127.0.0.1:9465/?token=a:1"), Some(9465));
        assert_eq!(port_of("http://[::1]:80/"), Some(80));
        assert_eq!(port_of("http://host/"), None);
    }

    #[test]
    fn the_host_is_the_servers_side_of_a_session() {
        assert_eq!(host_of("10.0.0.2 51000 10.0.0.9 22"), Some("10.0.0.9"));
        assert_eq!(host_of(""), None);
    }
}
