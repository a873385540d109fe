#!/bin/bash
# On a machine with a GPU:   bash gpu-bundle/run.sh verify      then   bash gpu-bundle/run.sh full
# Unpacks the bundle that lies beside this file, once, and passes the arguments to run.py, which explains them.
# Variables: PY, a Python of the bundle's version with numpy; SCRATCH, the folder to unpack into; OUT, the folder for
# results; FAKE=1 runs on the fake driver; CORPUS, the recorded corpus.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-$PWD/gpu-out} FAKE=${FAKE:-0}
PY=${PY:-python3}
scratch=${SCRATCH:-${TMPDIR:-/var/tmp}/aggml-gpu-$(id -u)}
mkdir -p "$scratch" "$OUT" || exit 1
if ! cmp -s "$here/bundle.sha256" "$scratch/unpacked.sha256"; then
    rm -rf "$scratch/site" "$scratch/tree" "$scratch/unpacked.sha256"
    (cd "$here" && sha256sum --quiet -c bundle.sha256) || exit 1
    "$PY" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' \
        "$here/all.tar.xz" "$scratch" || exit 1
    cp "$here/bundle.sha256" "$scratch/unpacked.sha256" || exit 1
fi
# The recorded corpus is not in the bundle: it is taken from the checkout in which the bundle lies.
folder=$here
while [ ! -e "$folder/tests/corpus/types.json" ] && [ "$folder" != / ]; do folder=$(dirname "$folder"); done
corpus=${CORPUS:-$folder/tests/corpus}
rm -f "$scratch/tree/tests/corpus"
[ -e "$corpus/types.json" ] && ln -s "$corpus" "$scratch/tree/tests/corpus"
export PYTHONPATH="$scratch/site" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
export XDG_CACHE_HOME="$scratch/cache"
cd "$scratch/tree" && exec "$PY" tools/gpu/run.py "$@"
