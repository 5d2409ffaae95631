#!/bin/bash
# Creates a managed instance group of spot VMs that train together, with its network, account and secrets.
#
#     packaging/gce/create.sh example-project europe-west4-a gs://example-data 4
#
# Before, on a machine that you trust, in the directory in which this script runs:
#
#     millstream peers init-ca millstream-ca
#     millstream peers issue --ca millstream-ca --out certificates '*.europe-west4-a.c.example-project.internal'
#     gcloud storage cp target/packages/millstream_*.deb gs://example-data/packages/millstream.deb
#
# The manual's page "Starting several hosts" describes what it makes and how it is used.
set -euo pipefail

usage="usage: create.sh PROJECT ZONE gs://BUCKET VMS"
project=${1:?$usage}
zone=${2:?$usage}
bucket=${3:?$usage}
vms=${4:?$usage}
region=${zone%-*}
# Has libucx0.
image=debian-13
machine=${MILLSTREAM_MACHINE:-c3-standard-22}
account=millstream-host@$project.iam.gserviceaccount.com
certificate="certificates/any.$zone.c.$project.internal"

export CLOUDSDK_CORE_PROJECT=$project

[[ -r $certificate.pem && -r $certificate.key ]] || {
    echo "create.sh: $certificate.pem and .key are missing: see the first lines of this script" >&2
    exit 2
}

# The account of the VMs: the bucket and the four secrets.
gcloud iam service-accounts create millstream-host
gcloud storage buckets add-iam-policy-binding "$bucket" \
    --member="serviceAccount:$account" --role=roles/storage.objectUser
add_secret() {
    gcloud secrets create "$1" --replication-policy=automatic --data-file="$2"
    gcloud secrets add-iam-policy-binding "$1" \
        --member="serviceAccount:$account" --role=roles/secretmanager.secretAccessor
}
add_secret millstream-host-pem "$certificate.pem"
add_secret millstream-host-key "$certificate.key"
add_secret millstream-ca-pem millstream-ca/ca.pem
add_secret millstream-crl-pem millstream-ca/crl.pem

# A network without other VMs, whose firewall admits these VMs from each other, and SSH through Google's proxy. A new
# network admits nothing by default. VMs without external addresses reach Google's APIs and, by the router, the packages.
gcloud compute networks create millstream --subnet-mode=custom
gcloud compute networks subnets create millstream --network=millstream --region="$region" --range=10.90.0.0/20 \
    --enable-private-ip-google-access
gcloud compute firewall-rules create millstream-hosts --network=millstream --direction=INGRESS --allow=tcp \
    --source-tags=millstream-host --target-tags=millstream-host
gcloud compute firewall-rules create millstream-ssh --network=millstream --direction=INGRESS --allow=tcp:22 \
    --source-ranges=35.235.240.0/20 --target-tags=millstream-host
gcloud compute routers create millstream --network=millstream --region="$region"
gcloud compute routers nats create millstream --router=millstream --region="$region" \
    --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges

# The group replaces each spot VM that is taken away, as soon as there is capacity. All its state is in the bucket.
gcloud compute instance-templates create millstream-host --machine-type="$machine" \
    --provisioning-model=SPOT --instance-termination-action=DELETE \
    --image-family="$image" --image-project=debian-cloud --boot-disk-size=50GB \
    --network=millstream --subnet=millstream --region="$region" --no-address --tags=millstream-host \
    --service-account="$account" --scopes=cloud-platform \
    --metadata=millstream-bucket="$bucket" \
    --metadata-from-file=startup-script="$(dirname "${BASH_SOURCE[0]}")/startup.sh"
gcloud compute instance-groups managed create millstream --zone="$zone" --template=millstream-host --size="$vms"
