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
        Format::Compose => compose(advice, out, &mut notes)?,
        Format::Kubernetes => kubernetes(advice, out, &mut notes)?,
    }
    if !matches!(format, Format::Shell | Format::Json) && !advice.unset.is_empty() {
        notes.push(format!(
            "this format cannot unset: see that these are not set from elsewhere: {}",
            names(&advice.unset)
        ));
    }
    if !matches!(format, Format::Shell | Format::Json) && !advice.left_over.is_empty() {
        notes.push(format!(
            "this format cannot take back what earlier settings of this tool may have left where it is started from; these must not be set: {}",
            names(&advice.left_over)
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
pub fn quoted(text: &str) -> String {
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
    for (name, _) in variables(&advice.unset).chain(variables(&advice.left_over)) {
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
    let mut unset = list(&advice.unset);
    unset.extend(list(&advice.left_over));
    let value = json!({
        "engine": advice.engine,
        "backend": advice.backend,
        "authenticity": authenticity,
        "proven": advice.proven,
        "environment": map(&advice.environment),
        "unset": unset,
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

/// The GPUs of the host that the settings are for, and the variables that a container needs. Inside one, GPUs are counted
/// anew from 0: indices of the host there would name others, or none.
struct Inside {
    /// Indices of the host, ascending.
    gpus: Vec<u32>,
    variables: Vec<(String, String)>,
}

impl Inside {
    fn of(advice: &Recommendation) -> Inside {
        const LIST: &str = "CUDA_VISIBLE_DEVICES";
        let listed = advice.environment.iter().find(|s| s.name == LIST);
        let order: Vec<u32> = listed
            .and_then(|s| s.value.as_deref())
            .and_then(|v| v.split(',').map(|n| n.parse().ok()).collect())
            .unwrap_or_default();
        let mut gpus = order.clone();
        gpus.sort_unstable();
        let renumbered: Vec<String> = order
            .iter()
            .filter_map(|gpu| gpus.iter().position(|g| g == gpu))
            .map(|at| at.to_string())
            .collect();
        let ascending = order == gpus;
        let variables = variables(&advice.environment)
            .filter(|(name, _)| *name != LIST || !ascending || order.is_empty())
            .map(|(name, value)| match name {
                LIST if !order.is_empty() => (name.to_string(), renumbered.join(",")),
                _ => (name.to_string(), value.to_string()),
            })
            .collect();
        Inside { gpus, variables }
    }

    fn list(&self) -> String {
        let all: Vec<String> = self.gpus.iter().map(u32::to_string).collect();
        all.join(", ")
    }
}

fn compose(
    advice: &Recommendation,
    out: &mut dyn Write,
    notes: &mut Vec<String>,
) -> io::Result<()> {
    let inside = Inside::of(advice);
    // Compose fills in $NAME; two of them mean one.
    let scalar = |text: &str| yaml(&text.replace('$', "$$"));
    writeln!(out, "services:")?;
    writeln!(out, "  {}:", service_name(&advice.engine))?;
    writeln!(out, "    ipc: host")?;
    if !inside.gpus.is_empty() {
        let ids: Vec<String> = inside.gpus.iter().map(|g| yaml(&g.to_string())).collect();
        writeln!(out, "    deploy:")?;
        writeln!(out, "      resources:")?;
        writeln!(out, "        reservations:")?;
        writeln!(out, "          devices:")?;
        writeln!(out, "            - driver: nvidia")?;
        writeln!(out, "              device_ids: [{}]", ids.join(", "))?;
        writeln!(out, "              capabilities: [gpu]")?;
        notes.push(format!(
            "device_ids are the host's indices as nvidia-smi prints them ({}); inside the container they are counted from 0. UUIDs (nvidia-smi -L) do not change when cards do",
            inside.list()
        ));
    }
    if !inside.variables.is_empty() {
        writeln!(out, "    environment:")?;
        for (name, value) in &inside.variables {
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

fn kubernetes(
    advice: &Recommendation,
    out: &mut dyn Write,
    notes: &mut Vec<String>,
) -> io::Result<()> {
    let inside = Inside::of(advice);
    // Kubernetes fills in $(NAME); a doubled dollar keeps it as it is.
    let scalar = |text: &str| yaml(&text.replace("$(", "$$("));
    writeln!(out, "containers:")?;
    writeln!(out, "  - name: {}", service_name(&advice.engine))?;
    if !inside.gpus.is_empty() {
        writeln!(out, "    resources:")?;
        writeln!(out, "      limits:")?;
        writeln!(out, "        nvidia.com/gpu: {}", inside.gpus.len())?;
        notes.push(format!(
            "Kubernetes hands out GPUs by number and chooses which itself: what was proven are GPUs {} of the tested host. On a node with more GPUs test all of them, and inside the pod they are counted from 0",
            inside.list()
        ));
    }
    // Which GPU is which is not known before the pod runs, so no order of ranks can be told.
    let told: Vec<&(String, String)> = inside
        .variables
        .iter()
        .filter(|(name, _)| name != "CUDA_VISIBLE_DEVICES" || inside.gpus.is_empty())
        .collect();
    if !told.is_empty() {
        writeln!(out, "    env:")?;
        for (name, value) in told {
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
            left_over: vec![setting("VETO", None), setting("V;reboot", None)],
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
        assert!(text.contains("\nunset X\nunset VETO\nexport A="));
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
            let left = notes.iter().any(|n| n.contains("must not be set: VETO"));
            assert!(left && !text.contains("VETO"), "{notes:?}");
        }
        let (text, _) = told(Format::Json);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["unset"], json!(["X", "VETO", "V;reboot"]));
        assert_eq!(
            value["arguments"],
            json!(["--tp", "8", "--flag", "--json", "{\"a\":[1,2]}"])
        );
    }

    /// In a container the host's indices are another's, or nobody's.
    #[test]
    fn containers_ask_for_devices_and_number_them_anew() {
        let mut advice = advice();
        let list = |text: &str| vec![setting("CUDA_VISIBLE_DEVICES", Some(text))];
        let told = |advice: &Recommendation, format| {
            let mut out = Vec::new();
            let notes = write(format, advice, Authenticity::Hardware, &mut out).unwrap();
            (String::from_utf8(out).unwrap(), notes.join("\n"))
        };
        advice.environment = list("4,5");
        let (text, notes) = told(&advice, Format::Compose);
        assert!(text.contains("device_ids: [\"4\", \"5\"]"), "{text}");
        assert!(!text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
        assert!(notes.contains("the host's indices"), "{notes}");
        advice.environment = list("4,6,5,7");
        let (text, _) = told(&advice, Format::Compose);
        assert!(text.contains("CUDA_VISIBLE_DEVICES: \"0,2,1,3\""), "{text}");
        let (text, notes) = told(&advice, Format::Kubernetes);
        assert!(text.contains("nvidia.com/gpu: 4"), "{text}");
        assert!(!text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
        assert!(notes.contains("chooses which itself"), "{notes}");
        // A shell on the host keeps them.
        assert!(
            told(&advice, Format::Shell)
                .0
                .contains("CUDA_VISIBLE_DEVICES=4,6,5,7")
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
