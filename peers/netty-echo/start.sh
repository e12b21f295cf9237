#!/bin/sh
# start.sh JAR FLAGS...: runs the server, pinned to the cores of --cores, because Java cannot pin itself.
set -eu
jar=$1
shift
cores=
previous=
for argument in "$@"; do
    if [ "$previous" = --cores ]; then
        cores=$argument
    fi
    previous=$argument
done
if [ -n "$cores" ]; then
    exec taskset -c "$cores" java -jar "$jar" "$@"
fi
exec java -jar "$jar" "$@"
