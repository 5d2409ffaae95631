# For members of the group millstream, `millstream` uses the daemon of the service unless MILLSTREAM_SOCKET is set.
if [ -z "${MILLSTREAM_SOCKET:-}" ]; then
    case " $(id -nG 2>/dev/null) " in
        *" millstream "*)
            MILLSTREAM_SOCKET=/run/millstream/millstreamd.sock
            export MILLSTREAM_SOCKET
            ;;
    esac
fi
