//! Launch settings for other programs to read: shell lines, an environment file, JSON, a compose service, a Kubernetes
//! container. Every value is quoted for its reader, and names that are none are left out: a settings file is run by others.

use crate::model::{
    finding::{Recommendation, Setting},
    snapshot::Authenticity,
};
use serde_json::{Value, json};
use std::io::{self, Write};

/// A form of launch settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `export` and `unset` lines, and the flags as `PEERPROOF_FLAGS`; for `eval`.
    Shell,
    /// `NAME=value` lines.
    Env,
    /// Variables, variables to unset, and arguments.
    Json,
    /// A service of a compose file.
    Compose,
    /// A container of a Kubernetes manifest.
    Kubernetes,
}

/// The variable that carries the flags in shell text: words quoted for a shell, to be put through `eval`.
pub const FLAGS_VARIABLE: &str = "PEERPROOF_FLAGS";

/// Writes the settings of `advice` as `format`, and answers what this format cannot say.
///
/// # Errors
/// Those of the writer.
pub fn write(
    format: Format,
    advice: &Recommendation,
    authenticity: Authenticity,
    out: &mut dyn Write,
) -> io::Result<Vec<String>> {
    let mut notes = Vec::new();
    if format != Format::Json {
        let made = if authenticity == Authenticity::Hardware {
            ""
        } else {
            "; NOT OF A REAL HOST: do not launch one with this"
        };
        writeln!(
            out,
            "# peerproof recommend: {}, {}{made}",
            one_line(&advice.engine),
            one_line(&advice.backend_name)
        )?;
    }
    match format {
        Format::Shell => shell(advice, out)?,
        Format::Env => env(advice, out, &mut notes)?,
        Format::Json => object(advice, authenticity, out)?,
        Format::Compose => compose(advice, out)?,
        Format::Kubernetes => kubernetes(advice, out)?,
    }
    if !matches!(format, Format::Shell | Format::Json) && !advice.unset.is_empty() {
        notes.push(format!(
            "this format cannot unset: see that these are not set from elsewhere: {}",
            names(&advice.unset)
        ));
    }
    if !advice.omit.is_empty() && format != Format::Json {
        notes.push(format!(
            "leave these flags out of the launch command: {}",
            names(&advice.omit)
        ));
    }
    if !advice.configuration.is_empty() && format != Format::Json {
        let told: Vec<String> = advice
            .configuration
            .iter()
            .map(|s| format!("{}: {}", s.name, s.value.as_deref().unwrap_or_default()))
            .collect();
        notes.push(format!(
            "set these in the engine's own configuration or program: {}",
            told.join("; ")
        ));
    }
    Ok(notes)
}

fn names(settings: &[Setting]) -> String {
    let all: Vec<&str> = settings.iter().map(|s| s.name.as_str()).collect();
    all.join(", ")
}

/// Variables with a name that a shell takes for one.
fn variables(settings: &[Setting]) -> impl Iterator<Item = (&str, &str)> {
    settings
        .iter()
        .filter(|s| is_variable(&s.name))
        .map(|s| (s.name.as_str(), s.value.as_deref().unwrap_or_default()))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Flags and values as single words.
fn arguments(advice: &Recommendation) -> Vec<&str> {
    advice
        .flags
        .iter()
        .flat_map(|s| [Some(s.name.as_str()), s.value.as_deref()])
        .flatten()
        .collect()
}

/// Quotes `text` for a POSIX shell where it needs it.
pub(super) fn quoted(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_string()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Comments end with their line.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

fn shell(advice: &Recommendation, out: &mut dyn Write) -> io::Result<()> {
    for (name, _) in variables(&advice.unset) {
        writeln!(out, "unset {name}")?;
    }
    for (name, value) in variables(&advice.environment) {
        writeln!(out, "export {name}={}", quoted(value))?;
    }
    let words: Vec<String> = arguments(advice).into_iter().map(quoted).collect();
    let flags = words.join(" ");
    writeln!(out, "{FLAGS_VARIABLE}={}", quoted(&flags))?;
    writeln!(
        out,
        "# then: eval \"LAUNCH-COMMAND ${FLAGS_VARIABLE}\", which is LAUNCH-COMMAND {}",
        one_line(&flags)
    )
}

fn env(advice: &Recommendation, out: &mut dyn Write, notes: &mut Vec<String>) -> io::Result<()> {
    for (name, value) in variables(&advice.environment) {
        let text = quoted(value);
        if text != value {
            notes.push(format!(
                "{name} is quoted: readers of environment files that do not unquote (docker run --env-file) take the quotes for part of it"
            ));
        }
        writeln!(out, "{name}={text}")?;
    }
    let words: Vec<String> = arguments(advice).into_iter().map(quoted).collect();
    if !words.is_empty() {
        notes.push(format!(
            "flags for the launch command: {}",
            one_line(&words.join(" "))
        ));
    }
    Ok(())
}

fn object(
    advice: &Recommendation,
    authenticity: Authenticity,
    out: &mut dyn Write,
) -> io::Result<()> {
    let map = |settings: &[Setting]| -> Value {
        settings
            .iter()
            .map(|s| {
                let value = s.value.clone().map_or(Value::Null, Value::String);
                (s.name.clone(), value)
            })
            .collect::<serde_json::Map<String, Value>>()
            .into()
    };
    let list =
        |settings: &[Setting]| -> Vec<String> { settings.iter().map(|s| s.name.clone()).collect() };
    let value = json!({
        "engine": advice.engine,
        "backend": advice.backend,
        "authenticity": authenticity,
        "proven": advice.proven,
        "environment": map(&advice.environment),
        "unset": list(&advice.unset),
        "arguments": arguments(advice),
        "omit": list(&advice.omit),
        "configuration": map(&advice.configuration),
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}

/// A YAML scalar in double quotes; JSON's escapes are YAML's too.
fn yaml(text: &str) -> String {
    Value::String(text.to_string()).to_string()
}

fn service_name(engine: &str) -> String {
    engine
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect()
}

fn compose(advice: &Recommendation, out: &mut dyn Write) -> io::Result<()> {
    // Compose fills in $NAME; two of them mean one.
    let scalar = |text: &str| yaml(&text.replace('$', "$$"));
    writeln!(out, "services:")?;
    writeln!(out, "  {}:", service_name(&advice.engine))?;
    writeln!(out, "    ipc: host")?;
    if variables(&advice.environment).next().is_some() {
        writeln!(out, "    environment:")?;
        for (name, value) in variables(&advice.environment) {
            writeln!(out, "      {name}: {}", scalar(value))?;
        }
    }
    let words = arguments(advice);
    if !words.is_empty() {
        writeln!(out, "    command: # behind what the service starts already")?;
        for word in words {
            writeln!(out, "      - {}", scalar(word))?;
        }
    }
    Ok(())
}

fn kubernetes(advice: &Recommendation, out: &mut dyn Write) -> io::Result<()> {
    // Kubernetes fills in $(NAME); a doubled dollar keeps it as it is.
    let scalar = |text: &str| yaml(&text.replace("$(", "$$("));
    writeln!(out, "containers:")?;
    writeln!(out, "  - name: {}", service_name(&advice.engine))?;
    if variables(&advice.environment).next().is_some() {
        writeln!(out, "    env:")?;
        for (name, value) in variables(&advice.environment) {
            writeln!(out, "      - name: {name}")?;
            writeln!(out, "        value: {}", scalar(value))?;
        }
    }
    let words = arguments(advice);
    if !words.is_empty() {
        writeln!(out, "    args: # behind those that are there already")?;
        for word in words {
            writeln!(out, "      - {}", scalar(word))?;
        }
    }
    writeln!(out, "    volumeMounts:")?;
    writeln!(out, "      - name: shared-memory")?;
    writeln!(out, "        mountPath: /dev/shm")?;
    writeln!(out, "volumes:")?;
    writeln!(out, "  - name: shared-memory")?;
    writeln!(out, "    emptyDir:")?;
    writeln!(out, "      medium: Memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: Option<&str>) -> Setting {
        Setting {
            name: name.to_string(),
            value: value.map(str::to_string),
            because: "because".to_string(),
            basis: "basis".to_string(),
        }
    }

    fn advice() -> Recommendation {
        Recommendation {
            engine: "vllm".to_string(),
            backend: "nccl".to_string(),
            backend_name: "NCCL\nrm -rf /".to_string(),
            flags: vec![
                setting("--tp", Some("8")),
                setting("--flag", None),
                setting("--json", Some("{\"a\":[1,2]}")),
            ],
            environment: vec![
                setting("A", Some("it's; $(reboot) `x` \"y\"")),
                setting("B C;reboot", Some("1")),
            ],
            unset: vec![setting("X", None)],
            omit: vec![setting("--bad", None)],
            ..Recommendation::default()
        }
    }

    fn told(format: Format) -> (String, Vec<String>) {
        let mut out = Vec::new();
        let notes = write(format, &advice(), Authenticity::Simulated, &mut out).unwrap();
        (String::from_utf8(out).unwrap(), notes)
    }

    #[test]
    fn values_are_quoted_for_a_shell_when_they_need_it() {
        assert_eq!(quoted("SYS"), "SYS");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's; rm"), "'it'\\''s; rm'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("~/x"), "'~/x'");
    }

    #[test]
    fn shell_text_unsets_and_exports_and_names_no_bad_variable() {
        let (text, notes) = told(Format::Shell);
        assert!(text.starts_with("# peerproof recommend: vllm, NCCLrm -rf /; NOT OF A REAL HOST"));
        assert!(text.contains("\nunset X\n"));
        assert!(text.contains("\nexport A='it'\\''s; $(reboot) `x` \"y\"'\n"));
        assert!(!text.contains("B C"));
        assert_eq!(
            notes,
            ["leave these flags out of the launch command: --bad"]
        );
    }

    #[test]
    fn formats_that_cannot_unset_say_so() {
        for format in [Format::Env, Format::Compose, Format::Kubernetes] {
            let (text, notes) = told(format);
            assert!(!text.contains('X'), "{text}");
            assert!(
                notes
                    .iter()
                    .any(|n| n.contains("cannot unset") && n.contains('X'))
            );
        }
        let (text, _) = told(Format::Json);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["unset"], json!(["X"]));
        assert_eq!(
            value["arguments"],
            json!(["--tp", "8", "--flag", "--json", "{\"a\":[1,2]}"])
        );
    }

    #[test]
    fn dollars_survive_where_they_would_be_filled_in() {
        assert!(told(Format::Compose).0.contains("A: \"it's; $$(reboot)"));
        assert!(
            told(Format::Kubernetes)
                .0
                .contains("value: \"it's; $$(reboot)")
        );
    }
}
