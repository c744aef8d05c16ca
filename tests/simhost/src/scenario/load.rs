//! Reading scenario files as tables: inheritance by `base`, and settings laid over it.
use super::shipped;
use super::spec::Error;

/// Reads a file as a table and lays it over its base.
pub(super) fn load(name: &str, depth: usize) -> Result<toml::Table, Error> {
    if depth > 8 {
        return Err(Error(format!(
            "scenario {name}: bases nest more than 8 deep"
        )));
    }
    let text = match shipped::text(name) {
        Some(text) => text.to_string(),
        None if name.contains('/') || name.ends_with(".toml") => {
            std::fs::read_to_string(name).map_err(|e| Error(format!("scenario {name}: {e}")))?
        }
        None => {
            return Err(Error(format!(
                "no scenario `{name}`; shipped are: {}; or give a path",
                shipped::names().collect::<Vec<_>>().join(", ")
            )));
        }
    };
    let mut table: toml::Table = text
        .parse()
        .map_err(|e| Error(format!("scenario {name}: {e}")))?;
    match table.remove("base") {
        None => Ok(table),
        Some(toml::Value::String(base)) => {
            let mut under = load(&base, depth + 1)?;
            lay_over(&mut under, table);
            Ok(under)
        }
        Some(_) => Err(Error(format!("scenario {name}: base is not a name"))),
    }
}

/// Tables merge, everything else is replaced.
fn lay_over(under: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(toml::Value::Table(a)), toml::Value::Table(b)) => lay_over(a, b),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// Applies `a.b.0.c=value`; the value is TOML where it reads as TOML, else a string.
pub(super) fn apply(table: &mut toml::Table, setting: &str) -> Result<(), Error> {
    let Some((path, text)) = setting.split_once('=') else {
        return Err(Error(format!("--set {setting}: expected key.path=value")));
    };
    let value = format!("v = {text}")
        .parse::<toml::Table>()
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| toml::Value::String(text.to_string()));
    let keys: Vec<&str> = path.split('.').collect();
    let (Some((last, parents)), bad) = (
        keys.split_last(),
        Error(format!("--set {setting}: `{path}` leads nowhere")),
    ) else {
        return Err(Error(format!("--set {setting}: empty key")));
    };
    let mut at: Option<&mut toml::Value> = None;
    for key in parents {
        let next = match at {
            None => Some(
                table
                    .entry(*key)
                    .or_insert_with(|| toml::Value::Table(toml::Table::new())),
            ),
            Some(toml::Value::Table(t)) => Some(
                t.entry(*key)
                    .or_insert_with(|| toml::Value::Table(toml::Table::new())),
            ),
            Some(toml::Value::Array(a)) => key.parse::<usize>().ok().and_then(|i| a.get_mut(i)),
            Some(_) => None,
        };
        at = Some(next.ok_or_else(|| bad.clone())?);
    }
    match at {
        None => {
            table.insert(last.to_string(), value);
        }
        Some(toml::Value::Table(t)) => {
            t.insert(last.to_string(), value);
        }
        Some(toml::Value::Array(a)) => {
            *last
                .parse::<usize>()
                .ok()
                .and_then(|i| a.get_mut(i))
                .ok_or(bad)? = value
        }
        Some(_) => return Err(bad),
    }
    Ok(())
}
