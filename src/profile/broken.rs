//! Profiles that people could write by mistake: each is refused with file, line and what is allowed.

use super::Profiles;
use std::fs;

/// A sound engine of one's own.
const GOOD: &str = r#"id = "own"
name = "Own"
checked = "2026-01-02"
tp-flag = "--tp"

[launch]
commands = [["own", "serve"]]

[[peer-off]]
kind = "environment"
name = "OWN_PEERS"
value = "0"
because = "b"
source = "s"

[[backend]]
id = "fast"
name = "Fast"
order = 1
by-default = false
peer = true
consumer = "custom-all-reduce"
when = [{ world-size = [2] }, { engine-version = { from = "1.2" } }]
caps = [{ world = [2], max-bytes = 4096, hole-bytes = [10, 20] }]
turn-on = [{ kind = "environment", name = "OWN_PEERS", value = "1", because = "b", source = "s" }]
source = "s"

[[backend]]
id = "slow"
name = "Slow"
order = 2
by-default = true
peer = false
source = "s"

[[trap]]
id = "t"
severity = "warning"
when = [{ flag = ["--x"] }]
wrong = "w"
change = "c"
source = "s"
"#;

fn load(text: &str) -> Result<Profiles, String> {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("engines")).unwrap();
    fs::write(folder.path().join("engines/own.toml"), text).unwrap();
    Profiles::with_folder(folder.path()).map_err(|error| {
        let said = error.to_string();
        let own = folder.path().display().to_string();
        assert!(said.contains(&own), "{said}: the file is not named");
        said.replace(&own, "")
    })
}

#[test]
fn an_engine_of_ones_own_is_taken() {
    let profiles = load(GOOD).unwrap();
    assert_eq!(profiles.engine("own").unwrap().backends.len(), 2);
    assert!(profiles.engine("vllm").is_some());
    let fork = format!(
        "{}\ninherits = \"vllm\"\n",
        "id = \"own\"\nname = \"Own\"\nchecked = \"2026-01-02\""
    );
    let profiles = load(&fork).unwrap();
    let own = profiles.engine("own").unwrap();
    assert_eq!(own.tp_flag.as_deref(), Some("--tensor-parallel-size"));
    assert_eq!(
        own.backends.len(),
        profiles.engine("vllm").unwrap().backends.len()
    );
}

#[test]
fn mistakes_are_refused_with_their_line_and_what_is_allowed() {
    // What stands in the sound file, what a mistake makes of it, and words of the error.
    let mistakes: &[(&str, &str, &[&str])] = &[
        ("tp-flag =", "tp-flg =", &["tp-flg", "tp-flag"]),
        (
            "checked = \"2026-01-02\"",
            "checked = \"soon\"",
            &["soon", "YYYY-MM-DD"],
        ),
        ("id = \"own\"", "id = \"other\"", &["'other'", "'own'"]),
        ("name = \"Own\"", "name = 5", &["string"]),
        ("order = 1", "order = \"first\"", &["u32"]),
        ("order = 1", "order = -1", &["u32"]),
        ("by-default = false", "by-default = \"no\"", &["boolean"]),
        ("by-default = false\n", "", &["by-default"]),
        (
            "{ world-size = [2] }",
            "{ world-sizes = [2] }",
            &["world-sizes", "world-size", "full-nvlink-above"],
        ),
        ("{ world-size = [2] }", "{ world-size = 2 }", &["sequence"]),
        (
            "{ world-size = [2] }",
            "{ world-size = [] }",
            &["world-size", "from 1"],
        ),
        (
            "{ world-size = [2] }",
            "{ fabric = [\"copper\"] }",
            &["copper", "nvswitch"],
        ),
        ("{ world-size = [2] }", "{ fabric = [] }", &["fabric"]),
        (
            "{ world-size = [2] }",
            "{ dtype = [\"fp4\"] }",
            &["fp4", "bf16"],
        ),
        (
            "{ world-size = [2] }",
            "{ compute-capability = [9] }",
            &["size 2"],
        ),
        (
            "{ world-size = [2] }",
            "{ proven = \"hoped\" }",
            &["hoped", "shared"],
        ),
        (
            "{ world-size = [2] }",
            "{ elements-multiple-of = 0 }",
            &["elements-multiple-of"],
        ),
        ("from = \"1.2\"", "from = \"latest\"", &["latest", "0.30.0"]),
        (
            "{ from = \"1.2\" }",
            "{ since = \"1.2\" }",
            &["since", "from"],
        ),
        ("{ from = \"1.2\" }", "{}", &["engine-version", "before"]),
        ("max-bytes = 4096", "max-bytes = 0", &["0 bytes"]),
        (
            "max-bytes = 4096",
            "max-byte = 4096",
            &["max-byte", "max-bytes"],
        ),
        (
            "hole-bytes = [10, 20]",
            "hole-bytes = [20, 10]",
            &["hole-bytes", "ascending"],
        ),
        (
            "caps = [{ world = [2],",
            "caps = [{ world = [],",
            &["no group size"],
        ),
        (
            "id = \"fast\"",
            "id = \"Fast One\"",
            &["Fast One", "lower-case"],
        ),
        ("id = \"slow\"", "id = \"fast\"", &["'fast' twice"]),
        ("turn-on = [{ kind", "turn-off = [{ kind", &["no turn-on"]),
        (
            "kind = \"environment\"\nname = \"OWN_PEERS\"",
            "kind = \"wish\"\nname = \"OWN_PEERS\"",
            &["wish", "unset"],
        ),
        (
            "name = \"OWN_PEERS\"\nvalue = \"0\"",
            "name = \"OWN PEERS\"\nvalue = \"0\"",
            &["OWN PEERS", "letters"],
        ),
        (
            "name = \"OWN_PEERS\"\nvalue = \"0\"\n",
            "name = \"OWN_PEERS\"\n",
            &["no value"],
        ),
        (
            "kind = \"environment\"\nname = \"OWN_PEERS\"",
            "kind = \"flag\"\nname = \"OWN_PEERS\"",
            &["dash"],
        ),
        (
            "kind = \"environment\"\nname = \"OWN_PEERS\"",
            "kind = \"unset\"\nname = \"OWN_PEERS\"",
            &["unset"],
        ),
        (
            "because = \"b\"\nsource = \"s\"",
            "because = \"\"\nsource = \"s\"",
            &["no reason"],
        ),
        (
            "severity = \"warning\"",
            "severity = \"bad\"",
            &["bad", "critical"],
        ),
        (
            "when = [{ flag = [\"--x\"] }]",
            "when = []",
            &["every launch"],
        ),
        (
            "when = [{ flag = [\"--x\"] }]",
            "when = [{ flag = [\"x\"] }]",
            &["'x'", "dashes"],
        ),
        (
            "when = [{ flag = [\"--x\"] }]",
            "when = [{ flagged = [\"--x\"] }]",
            &["flagged", "variable-is"],
        ),
        (
            "when = [{ flag = [\"--x\"] }]",
            "when = [{ variable-is = { name = \"A\" } }]",
            &["values"],
        ),
        (
            "commands = [[\"own\", \"serve\"]]",
            "commands = [\"own\"]",
            &["sequence"],
        ),
        ("[launch]\n", "[launch\n", &["]"]),
    ];
    for (sound, mistake, words) in mistakes {
        assert!(GOOD.contains(sound), "{sound}");
        let text = GOOD.replacen(sound, mistake, 1);
        let said = load(&text).expect_err(mistake);
        let rest = said.strip_prefix("/engines/own.toml:").expect(&said);
        let line: usize = rest.split(':').next().unwrap().parse().expect(&said);
        assert!(line >= 1 && line <= text.lines().count(), "{said}");
        for word in *words {
            assert!(said.contains(word), "{mistake}: '{word}' is not in: {said}");
        }
        // The line is the mistake's, or that of the entry that holds it.
        let place = GOOD.find(sound).unwrap();
        let near = GOOD[..place].lines().count() + 1;
        assert!(
            line.abs_diff(near) <= 10,
            "{mistake}: line {line}, expected about {near}"
        );
    }
}

#[test]
fn what_only_the_whole_shows_is_refused_with_its_file() {
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "by-default = true",
            "by-default = true\nwhen = [{ world-size = [2] }]",
            &["for all other hosts"],
        ),
        (
            "name = \"OWN_PEERS\"\nvalue = \"0\"",
            "name = \"OTHER\"\nvalue = \"0\"",
            &["'fast'", "peer-off"],
        ),
        (
            "tp-flag = \"--tp\"",
            "inherits = \"vlm\"",
            &["'vlm'", "sglang"],
        ),
        ("tp-flag = \"--tp\"", "inherits = \"own\"", &["itself"]),
        (
            "tp-flag = \"--tp\"",
            "traps-of = [\"vlm\"]",
            &["'vlm'", "nccl"],
        ),
    ];
    for (sound, mistake, words) in cases {
        let said = load(&GOOD.replacen(sound, mistake, 1)).expect_err(mistake);
        assert!(said.starts_with("/engines/own.toml: "), "{said}");
        for word in *words {
            assert!(said.contains(word), "{mistake}: '{word}' is not in: {said}");
        }
    }
}
