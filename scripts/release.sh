#!/usr/bin/env bash
# Build what a release consists of, prove it, and write its notes. Nothing is uploaded or tagged.
#
#   scripts/release.sh [--rehearse] PYTHON [OUT]      (an interpreter with the `dev` extra)
#
# OUT (dist by default) gets the source distribution, the wheel and NOTES.md, which is the version's
# section of CHANGELOG.md. The wheel is tried in an empty environment. Without --rehearse all changes
# have to be committed, and the section has to have its date: "## 0.1.0 (2026-12-01)".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'error: %s\n' "$*" >&2 && exit 1; }
say() { printf -- '-- %s\n' "$*"; }

rehearse=
if [[ ${1:-} == --rehearse ]]; then
  rehearse=1
  shift
fi
(($# == 1 || $# == 2)) || die "usage: scripts/release.sh [--rehearse] PYTHON [OUT]"
python=$1 out=${2:-dist}

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' hopper/__init__.py)
[[ -n $version ]] || die 'hopper/__init__.py: expected a line __version__ = "..."'

# The section of this version: from its heading to the next.
section() {
  awk -v head="## $version (" 'index($0, head) == 1 { on = 1; next } /^## / { on = 0 } on' CHANGELOG.md
}

say "version $version"
heading=$(grep -F "## $version (" CHANGELOG.md || true)
[[ -n $heading ]] || die "CHANGELOG.md: no section ## $version (DATE)"
[[ -n $(section | tr -d '[:space:]') ]] || die "CHANGELOG.md: the section of $version is empty"
if [[ -z $rehearse ]]; then
  [[ $heading =~ \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$ ]] ||
    die "CHANGELOG.md: expected the date of $version as YYYY-MM-DD, found: $heading"
  [[ -z $(git status --porcelain) ]] || die "the checkout has changes that are not committed"
  [[ -z $(git tag --list "v$version") ]] || die "the tag v$version is there already"
fi
if [[ -e $out && -n $(ls -A "$out") ]]; then
  die "$out: expected an empty folder, or none"
fi

say "build"
mkdir -p "$out"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The wheel is built from the source distribution, so that it proves that nothing is missing there.
"$python" -m build --no-isolation --outdir "$out" . >"$log" 2>&1 || { cat "$log" >&2 && exit 1; }

say "metadata and content"
"$python" scripts/check_distribution.py "$out"
if "$python" -c 'import twine' 2>/dev/null; then
  "$python" -m twine check --strict "$out"/*.whl "$out"/*.tar.gz
fi

say "the wheel in an empty environment"
scripts/test_wheel.sh "$python" "$out"

section >"$out/NOTES.md"
say "built in $out: $(cd "$out" && echo ./*)"
cat <<TEXT
What is left to do:
  git tag -a v$version -F $out/NOTES.md --cleanup=verbatim && git push origin v$version
  $python -m twine upload $out/*.whl $out/*.tar.gz
TEXT
