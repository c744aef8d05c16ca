//! What a kernel command line says of the IOMMU (the kernel's admin-guide/kernel-parameters.txt). Whether there is one, and what
//! the kernel was built to do where the line is silent, it does not say.

/// The words of a command line that set the IOMMU. Of words that contradict, the last one holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IommuLine {
    /// The word that switches it on (`true`) or off.
    pub switch: Option<(bool, String)>,
    /// The word that sets the default domain: translated (`true`) or passed through.
    pub translated: Option<(bool, String)>,
    /// The word that sets how invalidations are done where it translates: strictly (`true`) or lazily.
    pub strict: Option<(bool, String)>,
    /// Words that look like settings and that the kernel does not know: "amd_iommu=on".
    pub ignored: Vec<String>,
    /// A word for AMD's driver is there: whoever wrote the line took the host for one of AMD's.
    pub amd: bool,
}

/// A boolean as the kernel reads it.
fn yes(value: &str) -> Option<bool> {
    match value {
        "1" | "y" | "Y" | "on" => Some(true),
        "0" | "n" | "N" | "off" => Some(false),
        _ => None,
    }
}

impl IommuLine {
    /// Reads a command line. What stands behind `--` is for init.
    pub fn of(line: &str) -> IommuLine {
        let mut out = IommuLine::default();
        for word in line.split_whitespace().take_while(|word| *word != "--") {
            let Some((name, values)) = word.split_once('=') else {
                continue;
            };
            // The kernel takes '-' and '_' in names for one.
            let name = name.replace('-', "_");
            let whole = || word.to_string();
            match name.as_str() {
                "iommu.passthrough" => {
                    let passes = yes(values).map(|passes| (!passes, whole()));
                    out.translated = passes.or(out.translated);
                }
                "iommu.strict" => {
                    out.strict = yes(values).map(|is| (is, whole())).or(out.strict);
                }
                "iommu" | "intel_iommu" | "amd_iommu" => {
                    out.amd |= name == "amd_iommu";
                    for value in values.split(',') {
                        out.value(&name, value, word);
                    }
                }
                _ => {}
            }
        }
        out
    }

    fn value(&mut self, name: &str, value: &str, word: &str) {
        match (name, value) {
            ("iommu", "pt") => self.translated = Some((false, word.to_string())),
            ("iommu", "nopt") => self.translated = Some((true, word.to_string())),
            (_, "off") => self.switch = Some((false, word.to_string())),
            ("intel_iommu", "on") | ("amd_iommu", "force_enable") => {
                self.switch = Some((true, word.to_string()));
            }
            // Older spellings of iommu.strict=1.
            ("intel_iommu", "strict") | ("amd_iommu", "fullflush") => {
                self.strict = Some((true, word.to_string()));
            }
            ("amd_iommu", "on") => self.ignored.push(word.to_string()),
            _ => {}
        }
    }

    /// Whether default domains translate, where the line alone decides it; `at_work` is whether an IOMMU is known to be on.
    /// Switched off and passed through are alike in this: addresses stay as they are.
    pub fn translates(&self, at_work: bool) -> Option<bool> {
        let on = matches!(self.switch, Some((true, _))) || at_work;
        match (&self.switch, &self.translated) {
            (Some((false, _)), _) | (_, Some((false, _))) => Some(false),
            (_, Some((true, _))) if on => Some(true),
            _ => None,
        }
    }

    /// Whether the line asks for translation, or for an IOMMU and not for pass-through: then it translates unless there is none
    /// or the kernel was built to pass through.
    pub fn leans_to_translation(&self) -> bool {
        self.translates(true) != Some(false)
            && [&self.switch, &self.translated]
                .iter()
                .any(|said| matches!(said, Some((true, _))))
    }

    /// All words that say something, in a row; empty when none does.
    pub fn words(&self) -> Vec<&str> {
        let said = [&self.switch, &self.translated, &self.strict];
        let mut words: Vec<&str> = Vec::new();
        for (_, word) in said.into_iter().flatten() {
            if !words.contains(&word.as_str()) {
                words.push(word);
            }
        }
        words.extend(self.ignored.iter().map(String::as_str));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_holds_and_off_outranks_all() {
        let says = |line: &str| {
            (
                IommuLine::of(line).translates(false),
                IommuLine::of(line).translates(true),
            )
        };
        for (line, alone, at_work) in [
            ("quiet", None, None),
            ("iommu=pt", Some(false), Some(false)),
            ("intel_iommu=on iommu=pt", Some(false), Some(false)),
            ("intel_iommu=on", None, None),
            ("iommu.strict=1", None, None),
            ("iommu=nopt", None, Some(true)),
            ("intel_iommu=on iommu=nopt", Some(true), Some(true)),
            (
                "intel_iommu=on,sm_on iommu.passthrough=0",
                Some(true),
                Some(true),
            ),
            ("amd_iommu=on iommu.passthrough=0", None, Some(true)),
            ("iommu=pt iommu.passthrough=0", None, Some(true)),
            ("iommu=nopt iommu=pt", Some(false), Some(false)),
            ("amd_iommu=off iommu=nopt", Some(false), Some(false)),
            ("iommu=soft,pt", Some(false), Some(false)),
            ("-- iommu=nopt", None, None),
        ] {
            assert_eq!(says(line), (alone, at_work), "{line}");
        }
    }

    #[test]
    fn what_is_asked_for_and_what_is_ignored() {
        for line in [
            "intel_iommu=on",
            "iommu=nopt",
            "amd_iommu=on iommu.passthrough=0",
        ] {
            assert!(IommuLine::of(line).leans_to_translation(), "{line}");
        }
        for line in [
            "amd_iommu=on",
            "iommu.strict=1",
            "intel_iommu=on iommu=pt",
            "quiet",
        ] {
            assert!(!IommuLine::of(line).leans_to_translation(), "{line}");
        }
        assert_eq!(IommuLine::of("amd_iommu=on").ignored, ["amd_iommu=on"]);
        assert_eq!(
            IommuLine::of("intel_iommu=strict").strict,
            Some((true, "intel_iommu=strict".into()))
        );
    }
}
