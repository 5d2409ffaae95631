# Members of the group `millstream` use the daemon of the system.
if [ -z "${MILLSTREAM_SOCKET:-}" ] && id -nG 2>/dev/null | grep -qw millstream; then
    export MILLSTREAM_SOCKET=/run/millstream/millstreamd.sock
fi
