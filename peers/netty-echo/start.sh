#!/bin/sh
# start.sh JAR FLAGS...: becomes the server, on the cores that --cores names; Java cannot choose them itself.
set -eu
jar=$1
shift
cores=
previous=
for word in "$@"; do
    if [ "$previous" = --cores ]; then
        cores=$word
    fi
    previous=$word
done
if [ -n "$cores" ]; then
    exec taskset -c "$cores" java -jar "$jar" "$@"
fi
exec java -jar "$jar" "$@"
