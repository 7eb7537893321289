#!/bin/sh
# Runs a command for as long as standard input is open: when it closes, since the
# test that holds it has ended in whatever way, the whole process group is killed.
# The caller makes this process the leader of a group.
exec 3<&0
{
	cat <&3
	kill -KILL 0
} >/dev/null 2>&1 &
exec 3<&-
exec "$@" </dev/null
