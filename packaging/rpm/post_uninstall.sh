if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    # On upgrade: the new version resumes unfinished jobs.
    if [ "$1" -ge 1 ]; then
        systemctl try-restart millstreamd.service || :
    fi
fi
