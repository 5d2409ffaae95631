//! Arguments of `peers`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `peers`
#[derive(Debug, Args)]
#[command(after_help = "\
Lists the host of this daemon and the others that it knows: whether they answer, their devices, jobs,
rates, the share of time that jobs wait for input, the round trip and the offset of their clocks. The
section [peers] of the daemon's configuration says where they are. The exit status is 1 if a link
cannot be measured.

Examples:
  millstream peers
  millstream peers --json | jq -r '.peers[] | select(.state == \"down\") | \"\\(.address) \\(.reason)\"'
  millstream peers --measure
  millstream peers --measure train-2 --connections 8")]
pub(crate) struct Peers {
    #[command(subcommand)]
    pub(crate) command: Option<PeersCommand>,
    /// Measure the links to these hosts, by name or address; without names, to all that are up
    #[arg(long, value_name = "HOST", num_args = 0..)]
    pub(crate) measure: Option<Vec<String>>,
    /// With --measure: the number of parallel connections; each uses one CPU for encryption
    #[arg(long, value_name = "N", requires = "measure", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) connections: u32,
    /// With --measure: the seconds for each direction
    #[arg(long, value_name = "S", requires = "measure", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10))]
    pub(crate) seconds: u32,
}

/// A command of `peers`.
#[derive(Debug, Subcommand)]
pub(crate) enum PeersCommand {
    /// Create a certificate authority for the daemons of several hosts
    InitCa(InitCa),
    /// Issue the certificate and key of a host
    Issue(Issue),
    /// Revoke all certificates of a host
    Revoke(Revoke),
}

/// `peers init-ca`
#[derive(Debug, Args)]
#[command(after_help = "\
Writes DIR/ca.pem, the certificate that every host needs; DIR/ca.key, the private key, which stays where
it is; and DIR/crl.pem, the list of revoked certificates. Daemons that trust this authority admit the
holder of any of its certificates: use it for nothing else.

Examples:
  millstream peers init-ca millstream-ca
  millstream peers issue --ca millstream-ca train-1 train-2")]
pub(crate) struct InitCa {
    /// The directory to create; must not contain an authority
    pub(crate) dir: PathBuf,
    /// How long the authority is valid
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
}

/// `peers issue`
#[derive(Debug, Args)]
#[command(after_help = "\
Writes NAME.pem and NAME.key for each name; in the names of files, `any` replaces the star. The name of a
certificate is the name of its host. One with a wildcard is for hosts that come and go: each replaces the
star with its host name up to the first dot. They share it, so it is revoked for all of them at once.

Examples:
  millstream peers issue --ca millstream-ca train-1 train-2
  millstream peers issue --ca millstream-ca --days 90 --out renewed train-1
  millstream peers issue --ca millstream-ca '*.europe-west4-a.c.project.internal'")]
pub(crate) struct Issue {
    /// Host names, or `*.DOMAIN` with two or more labels in DOMAIN
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// The directory of the authority
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
    /// The directory for the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) out: PathBuf,
    /// How long the certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
}

/// `peers revoke`
#[derive(Debug, Args)]
#[command(after_help = "\
Adds all certificates that were issued for these names to DIR/crl.pem. Copy it to every host, to the path
`peers.crl` of its configuration: daemons use the new list within seconds and close their connections.

Examples:
  millstream peers revoke --ca millstream-ca train-2")]
pub(crate) struct Revoke {
    /// The names of hosts
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// The directory of the authority
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
}
