#!/bin/bash
# The start-up script of the VMs that create.sh starts. It runs as root at each boot, so it does nothing that is done already.
set -euo pipefail

attribute() {
    curl --fail --silent --show-error --retry 5 --header 'Metadata-Flavor: Google' \
        "http://metadata.google.internal/computeMetadata/v1/instance/attributes/millstream-$1"
}

secret() {
    gcloud secrets versions access latest --secret="$1"
}

bucket=$(attribute bucket)
# The interface of the VM's only network. Its name depends on the type of the machine.
interface=$(ip -4 -oneline route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
[[ -n $interface ]]

if ! command -v millstreamd >/dev/null; then
    gcloud storage cp "$bucket/packages/millstream.deb" /tmp/millstream.deb
    apt-get update
    # Workers of several hosts communicate with UCX.
    DEBIAN_FRONTEND=noninteractive apt-get install --yes /tmp/millstream.deb libucx0
    # From now on, this script alone starts the daemon, after the configuration.
    systemctl disable --now millstreamd.service millstreamd.socket
fi

# At each boot, so that a renewed certificate needs new versions of the secrets only.
peers=/etc/millstream/peers
install --directory --owner=root --group=millstream --mode=0750 "$peers"
for name in host.pem host.key ca.pem crl.pem; do
    (umask 077 && secret "millstream-${name/./-}" >"$peers/$name.new")
    chown root:millstream "$peers/$name.new"
    chmod 0640 "$peers/$name.new"
    mv "$peers/$name.new" "$peers/$name"
done

cat >/etc/millstream/millstreamd.toml <<END
socket = "/run/millstream/millstreamd.sock"
state_directory = "/var/lib/millstream"
shared_directories = ["/var/lib/millstream/checkpoints"]
# Below the 30 seconds between the notice and the end of a spot VM.
stop_seconds = 20

[peers]
listen = "0.0.0.0:7420"
certificate = "$peers/host.pem"
key = "$peers/host.key"
ca = "$peers/ca.pem"
crl = "$peers/crl.pem"
discover = ["bucket:$bucket/peers"]
# create.sh isolates it: firewall rules admit VMs of the group only.
data_interface = "$interface"
data_protection = "isolated"
END

systemctl start millstreamd.socket millstreamd.service
