#!/bin/sh
# Pictures of the HTML report as a reader sees it: 1280 and 420 columns wide, light and dark, and as a printed PDF. Needs
# Chromium (Debian: apt-get install chromium), which no other part of peerproof does; so it is no part of CI.
#
#   docs/screenshots.sh [FOLDER]      FOLDER = target/screenshots when not given
#
# The hosts are simulated ones: no GPU is needed, and every page says so.
set -eu
cd "$(dirname "$0")/.."
out=${1:-target/screenshots}
bin=target/debug
command -v chromium >/dev/null || { echo "chromium is not installed: apt-get install chromium" >&2; exit 69; }
[ -x "$bin/peerproof" ] && [ -x "$bin/simhost" ] || { echo "build first: cargo build" >&2; exit 69; }
mkdir -p "$out"
out=$(cd "$out" && pwd)

# shot PAGE NAME WIDTH HEIGHT THEME; Chromium's numbers: 0 dark, 1 light.
shot() {
    case $5 in dark) scheme=0 ;; *) scheme=1 ;; esac
    chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars \
        --blink-settings=preferredColorScheme=$scheme --window-size="$3,$4" \
        --screenshot="$out/$2-$3-$5.png" "file://$1" >/dev/null 2>&1
}

for scenario in ${SCENARIOS:-rtxpro6000-x8-zeroed hgx-h200-x8 downtrained-link one-gpu opaque-vm-mirrored sixteen-gpus}; do
    # A broken host has another exit code than 0: what counts is that the page is there.
    "$bin/simhost" run "$scenario" -- "$PWD/$bin/peerproof" qualify --quick --no-file --html "$out/$scenario.html" >/dev/null || true
    page="$out/$scenario.html"
    [ -s "$page" ] || { echo "$scenario: no page was written" >&2; exit 1; }
    for theme in light dark; do
        shot "$page" "$scenario" 1280 1500 $theme
        shot "$page" "$scenario" 420 1500 $theme
    done
    chromium --headless=new --no-sandbox --disable-gpu --no-pdf-header-footer \
        --print-to-pdf="$out/$scenario.pdf" "file://$page" >/dev/null 2>&1
    echo "$scenario: $(wc -c <"$page") bytes of HTML, pictures and PDF in $out"
done
