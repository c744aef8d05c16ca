//! Reads profiles: those embedded in the binary, and a folder that overrides them.

use super::{
    ConsumerProfile, EngineProfile, HostClass, ModelProfile, Names, NvlinkRate, check,
    consumer::{self, ConsumerFile},
    host::LinkFile,
    inherit,
};
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Path below `profiles/` and text of every embedded profile; written by build.rs.
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// All engines and models.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profiles {
    /// Engines, each with all that it continues, by id.
    pub engines: Vec<EngineProfile>,
    /// Models.
    pub models: Vec<ModelProfile>,
    /// Consumers of peer transfers.
    pub consumers: Vec<ConsumerProfile>,
    /// Flags and variables that programs take.
    pub names: Vec<Names>,
    /// Classes of hosts.
    pub hosts: Vec<HostClass>,
    /// What one NVLink carries, by version.
    pub nvlinks: Vec<NvlinkRate>,
    /// Engines as their files state them, with the files.
    stated: Vec<(String, EngineProfile)>,
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The folder or a file in it cannot be read.
    #[error("profiles: cannot read {path}: {error}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// The system's word.
        error: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value outside the closed set.
    #[error("{file}:{line}: {message}")]
    Malformed {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// Well-formed, but it contradicts itself or its place.
    #[error("{file}: {message}")]
    Invalid {
        /// File.
        file: String,
        /// What is wrong and what is allowed.
        message: String,
    },
}

/// A file of models.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelFile {
    #[serde(rename = "model")]
    models: Vec<ModelProfile>,
}

impl Profiles {
    /// The profiles inside the binary.
    ///
    /// # Errors
    /// None in a released binary: a test parses them all.
    pub fn embedded() -> Result<Self, ProfileError> {
        let mut profiles = Profiles::default();
        for (file, text) in EMBEDDED {
            profiles.add(file, text)?;
        }
        profiles.join()?;
        Ok(profiles)
    }

    /// The embedded profiles, with those below `folder` (`engines/*.toml`, `models/*.toml`, `names/*.toml`, `hosts/*.toml`,
    /// `consumers.toml`, `links.toml`) taking the place of embedded ones with the same id.
    ///
    /// # Errors
    /// The first file that cannot be read or used, with its line where it has one.
    pub fn with_folder(folder: &Path) -> Result<Self, ProfileError> {
        let mut profiles = Self::embedded()?;
        let mut files = Vec::new();
        for kind in ["engines", "hosts", "models", "names"] {
            let below = folder.join(kind);
            if !below.is_dir() {
                continue;
            }
            for entry in list(&below)? {
                if entry.extension().is_some_and(|e| e == "toml") {
                    files.push((kind, entry));
                }
            }
        }
        for kind in ["consumers.toml", "links.toml"] {
            let file = folder.join(kind);
            if file.is_file() {
                files.push((kind, file));
            }
        }
        if files.is_empty() {
            return Err(ProfileError::Invalid {
                file: folder.display().to_string(),
                message: "holds no engines/*.toml, models/*.toml, names/*.toml, hosts/*.toml, consumers.toml or links.toml"
                    .to_string(),
            });
        }
        files.sort();
        for (kind, path) in files {
            let text = fs::read_to_string(&path).map_err(|error| ProfileError::Unreadable {
                path: path.clone(),
                error,
            })?;
            profiles.add_kind(kind, &path.display().to_string(), &text)?;
        }
        profiles.join()?;
        Ok(profiles)
    }

    /// SHA-256 of the embedded profiles, hex, for reports.
    pub fn embedded_sha256() -> String {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        for (file, text) in EMBEDDED {
            hash.update(file.as_bytes());
            hash.update([0]);
            hash.update(text.as_bytes());
            hash.update([0]);
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The engine called `id` or by one of its aliases; case does not matter.
    pub fn engine(&self, id: &str) -> Option<&EngineProfile> {
        let called = |name: &String| name.eq_ignore_ascii_case(id.trim());
        self.engines
            .iter()
            .find(|e| called(&e.id) || e.aliases.iter().any(called))
    }

    /// Fills in what engines continue of each other, and looks at the whole.
    fn join(&mut self) -> Result<(), ProfileError> {
        let raw: Vec<EngineProfile> = self.stated.iter().map(|(_, e)| e.clone()).collect();
        let file_of = |id: &str| {
            let found = self.stated.iter().find(|(_, e)| e.id == id);
            found.map_or_else(|| id.to_string(), |(file, _)| file.clone())
        };
        let engines = inherit::resolve(&raw).map_err(|broken| ProfileError::Invalid {
            file: file_of(&broken.engine),
            message: broken.message,
        })?;
        for engine in &engines {
            check::whole_engine(&file_of(&engine.id), engine)?;
        }
        self.engines = engines;
        Ok(())
    }

    /// The model called `name`: id, OWNER/NAME, or NAME.
    pub fn model(&self, name: &str) -> Option<&ModelProfile> {
        self.models.iter().find(|m| m.is_called(name))
    }

    fn add(&mut self, file: &str, text: &str) -> Result<(), ProfileError> {
        let kind = file.split('/').next().unwrap_or_default();
        self.add_kind(kind, &format!("profiles/{file}"), text)
    }

    fn add_kind(&mut self, kind: &str, file: &str, text: &str) -> Result<(), ProfileError> {
        match kind {
            "engines" => {
                let engine: EngineProfile = parse(file, text)?;
                check::engine_file(file, text, &engine)?;
                self.stated.retain(|(_, old)| old.id != engine.id);
                self.stated.push((file.to_string(), engine));
            }
            "models" => {
                let loaded: ModelFile = parse(file, text)?;
                for model in loaded.models {
                    check::model(file, text, &model)?;
                    self.models.retain(|old| old.id != model.id);
                    self.models.push(model);
                }
            }
            "hosts" => {
                let class: HostClass = parse(file, text)?;
                check::host(file, text, &class)?;
                self.hosts.retain(|old| old.id != class.id);
                self.hosts.push(class);
            }
            "links.toml" => {
                for link in parse::<LinkFile>(file, text)?.nvlink {
                    check::nvlink(file, text, &link)?;
                    self.nvlinks.retain(|old| old.version != link.version);
                    self.nvlinks.push(link);
                }
            }
            "consumers.toml" => {
                for one in parse::<ConsumerFile>(file, text)?.consumers {
                    if let Some(message) = consumer::defect(&one) {
                        let file = file.to_string();
                        return Err(ProfileError::Invalid { file, message });
                    }
                    match self.consumers.iter_mut().find(|old| old.id == one.id) {
                        Some(old) => *old = one,
                        None => self.consumers.push(one),
                    }
                }
            }
            "names" => {
                let loaded: Names = parse(file, text)?;
                if let Some(message) = loaded.defect() {
                    return Err(ProfileError::Invalid {
                        file: file.to_string(),
                        message,
                    });
                }
                self.names.retain(|old| old.of != loaded.of);
                self.names.push(loaded);
            }
            other => {
                return Err(ProfileError::Invalid {
                    file: file.to_string(),
                    message: format!(
                        "'{other}' is no kind of profile (allowed: engines, models, names, hosts, consumers.toml, links.toml)"
                    ),
                });
            }
        }
        Ok(())
    }
}

/// The embedded consumers alone, without the work of reading all else.
pub(super) fn consumers_of_embedded() -> Result<Vec<ConsumerProfile>, ProfileError> {
    let mut profiles = Profiles::default();
    for (file, text) in EMBEDDED.iter().filter(|(f, _)| *f == "consumers.toml") {
        profiles.add(file, text)?;
    }
    Ok(profiles.consumers)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, ProfileError> {
    let unreadable = |error| ProfileError::Unreadable {
        path: folder.to_path_buf(),
        error,
    };
    fs::read_dir(folder)
        .map_err(unreadable)?
        .map(|entry| entry.map(|e| e.path()).map_err(unreadable))
        .collect()
}

fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, ProfileError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..at]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        ProfileError::Malformed {
            file: file.to_string(),
            line,
            message: error.message().trim().replace('\n', "; "),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_profiles_parse() {
        let profiles = Profiles::embedded().unwrap();
        assert!(profiles.engine("vllm").is_some());
        assert!(profiles.engine("SGLang").is_some());
        assert_eq!(
            profiles.model("zai-org/GLM-5.2-FP8").unwrap().hidden,
            Some(6144)
        );
        assert_eq!(profiles.model("glm-5.2").unwrap().all_reduces, Some(157));
        assert_eq!(profiles.model("mistral-large-3").unwrap().hidden, None);
        assert_eq!(Profiles::embedded_sha256().len(), 64);
    }

    #[test]
    fn no_name_means_two_models() {
        let profiles = Profiles::embedded().unwrap();
        for model in &profiles.models {
            for name in model.names() {
                let callers: Vec<&str> = profiles
                    .models
                    .iter()
                    .filter(|m| m.is_called(name))
                    .map(|m| m.id.as_str())
                    .collect();
                assert_eq!(callers, [model.id.as_str()], "{name}");
            }
        }
    }

    /// 2 x layers + 1, or blocks + 1 where a block has one mixer (facts: data.md 4.1).
    #[test]
    fn reductions_follow_from_layers() {
        for model in Profiles::embedded().unwrap().models {
            if let (Some(layers), Some(count)) = (model.layers, model.all_reduces) {
                assert!(
                    count == 2 * layers + 1 || count == layers + 1,
                    "{}: {count} for {layers}",
                    model.id
                );
            }
        }
    }

    fn broken(text: &str) -> String {
        Profiles::default()
            .add("models/own.toml", text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_broken_profile_names_file_line_and_what_is_allowed() {
        let good =
            "[[model]]\nid = \"a\"\nrepositories = []\nsource = \"s\"\nchecked = \"2026-01-01\"\n";
        let unknown = broken(&format!("{good}hiden = 4096\n"));
        assert!(
            unknown.starts_with("profiles/models/own.toml:6: "),
            "{unknown}"
        );
        assert!(
            unknown.contains("hiden") && unknown.contains("hidden"),
            "{unknown}"
        );
        let kind = broken(&format!("{good}activation = \"fp4\"\n"));
        assert!(kind.starts_with("profiles/models/own.toml:6: "), "{kind}");
        assert!(kind.contains("bf16"), "{kind}");
        let syntax = broken("[[model]]\nid = \n");
        assert!(
            syntax.starts_with("profiles/models/own.toml:2: "),
            "{syntax}"
        );
        let zero = broken(&format!("{good}hidden = 0\n"));
        assert!(zero.contains("unknown"), "{zero}");
    }

    #[test]
    fn a_condition_outside_the_set_is_refused_with_its_line() {
        let (_, vllm) = EMBEDDED
            .iter()
            .find(|(file, _)| *file == "engines/vllm.toml")
            .unwrap();
        let wrong = vllm.replacen("{ world-size =", "{ world-sizes =", 1);
        let place = vllm.find("{ world-size =").unwrap();
        let line = vllm[..place].lines().count();
        let error = Profiles::default()
            .add("engines/vllm.toml", &wrong)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("profiles/engines/vllm.toml:{line}: ")),
            "{error}"
        );
        assert!(error.contains("full-nvlink-above"), "{error}");
    }

    #[test]
    fn a_broken_host_class_names_file_line_and_what_is_allowed() {
        let (_, good) = EMBEDDED
            .iter()
            .find(|(file, _)| *file == "hosts/nvlink.toml")
            .unwrap();
        let wrong = |from: &str, to: &str| {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, *good, "{from}");
            Profiles::default()
                .add("hosts/nvlink.toml", &text)
                .unwrap_err()
                .to_string()
        };
        for (from, to, words) in [
            ("over = \"nvlink\"", "over = \"copper\"", "pcie"),
            (
                "typical = 0.87",
                "typical = 0.2",
                "fail-below <= warn-below",
            ),
            ("typical = 0.87", "tipical = 0.87", "typical"),
            ("id = \"nvlink\"", "id = \"other\"", "allowed: 'nvlink'"),
            ("from-bytes = 33554432", "from-bytes = -1", "u64"),
            (
                "executors = [\"copy-engine\"]",
                "executors = []",
                "multiprocessors",
            ),
            (
                "checked = \"2026-11-29\"",
                "checked = \"today\"",
                "YYYY-MM-DD",
            ),
        ] {
            let error = wrong(from, to);
            assert!(error.starts_with("profiles/hosts/nvlink.toml:"), "{error}");
            assert!(error.contains(words), "{error}");
        }
        let links = "[[nvlink]]\nversion = 4\ngb-per-s = 0.0\nsource = \"s\"\n";
        let error = Profiles::default().add("links.toml", links).unwrap_err();
        assert!(error.to_string().contains("above 0"), "{error}");
    }

    #[test]
    fn a_folder_overrides_by_id() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("models")).unwrap();
        fs::write(
            folder.path().join("models/mine.toml"),
            "[[model]]\nid = \"glm-5.2\"\nrepositories = []\nhidden = 8\nsource = \"mine\"\nchecked = \"2026-01-01\"\n",
        )
        .unwrap();
        let profiles = Profiles::with_folder(folder.path()).unwrap();
        assert_eq!(profiles.model("glm-5.2").unwrap().hidden, Some(8));
        assert!(profiles.model("qwen3-8b").is_some());
        let empty = tempfile::tempdir().unwrap();
        assert!(Profiles::with_folder(empty.path()).is_err());
    }
}
