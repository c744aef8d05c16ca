//! The arms: what each sets in NCCL's environment, and what of the operator's it sets aside and says so. Never touched:
//! NCCL_NVLS_ENABLE and its kin (inherited), and NCCL_P2P_USE_CUDA_MEMCPY, with which NCCL ends with wrong data on a mirror
//! (NVIDIA/nccl#2335).

use std::path::Path;

/// One way to run NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arm {
    /// As NCCL chooses.
    Default,
    /// NCCL_P2P_DISABLE=1: the control arm.
    P2pOff,
    /// NCCL_P2P_LEVEL=SYS: P2P at any distance.
    P2pSys,
}

const DISABLE: &str = "NCCL_P2P_DISABLE";
const LEVEL: &str = "NCCL_P2P_LEVEL";
/// NCCL's log: where, how much, of what. P2P, SHM and NET name transports; ENV names settings, those of nccl.conf too.
const DEBUG: [(&str, &str); 2] = [
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_DEBUG_SUBSYS", "INIT,ENV,GRAPH,P2P,SHM,NET"),
];
const DEBUG_FILE: &str = "NCCL_DEBUG_FILE";

impl Arm {
    /// Id of its rows.
    pub(super) const fn id(self) -> &'static str {
        match self {
            Arm::Default => "nccl",
            Arm::P2pOff => "nccl-p2p-off",
            Arm::P2pSys => "nccl-p2p-sys",
        }
    }

    /// What it says of P2P: variable and value, `None` = unset.
    fn p2p(self) -> [(&'static str, Option<&'static str>); 2] {
        match self {
            Arm::Default => [(DISABLE, None), (LEVEL, None)],
            Arm::P2pOff => [(DISABLE, Some("1")), (LEVEL, None)],
            Arm::P2pSys => [(DISABLE, None), (LEVEL, Some("SYS"))],
        }
    }

    /// Changes over the operator's environment, on top of those of every worker.
    pub(super) fn environment(self, log: &Path) -> Vec<(String, Option<String>)> {
        let own = |value: &str| Some(value.to_string());
        let p2p = self.p2p();
        let p2p = p2p.iter().map(|(name, value)| (*name, value.and_then(own)));
        let debug = DEBUG.iter().map(|(name, value)| (*name, own(value)));
        p2p.chain(debug)
            .chain([(DEBUG_FILE, own(&log.to_string_lossy()))])
            .map(|(name, value)| (name.to_string(), value))
            .collect()
    }

    /// What of the operator's environment is set aside for it, and what of NCCL's is inherited. `operator` are the variables
    /// that the operator has set.
    pub(super) fn told(self, operator: &[(String, String)]) -> Vec<String> {
        let own: Vec<String> = self
            .environment(Path::new(""))
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let value = |text: &str| text.chars().take(80).collect::<String>();
        let mut says = Vec::new();
        let mut inherited = Vec::new();
        for (name, had) in operator
            .iter()
            .filter(|(name, _)| name.starts_with("NCCL_"))
        {
            if own.contains(name) {
                says.push(format!("set aside for this arm: {name}={}", value(had)));
            } else {
                inherited.push(format!("{name}={}", value(had)));
            }
        }
        if !inherited.is_empty() {
            inherited.sort();
            says.push(format!("inherited: {}", inherited.join(", ")));
        }
        says
    }

    /// A setting of P2P that NCCL's log says it took although this arm does not make it: it comes from a file (nccl.conf),
    /// which no environment takes back.
    pub(super) fn foreign(self, settings: &[(String, String)]) -> Option<String> {
        let p2p = self.p2p();
        let odd = settings.iter().find(|(name, value)| {
            p2p.iter().any(|(own, set)| {
                own == name && set.is_none_or(|set| !set.eq_ignore_ascii_case(value))
            })
        })?;
        Some(format!(
            "NCCL took {}={} from a file of its own (/etc/nccl.conf or ~/.nccl.conf): this arm is not what its name says",
            odd.0, odd.1
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn no_arm_makes_a_setting_of_nvls_or_of_copies() {
        for arm in [Arm::Default, Arm::P2pOff, Arm::P2pSys] {
            for (name, _) in arm.environment(Path::new("/x")) {
                assert!(!name.contains("NVLS"), "{name}");
                assert_ne!(name, "NCCL_P2P_USE_CUDA_MEMCPY");
            }
        }
    }

    #[test]
    fn what_the_operator_had_is_set_aside_and_said() {
        let had = |name: &str, value: &str| (name.to_string(), value.to_string());
        let operator = [
            had("NCCL_P2P_DISABLE", "1"),
            had("NCCL_NVLS_ENABLE", "0"),
            had("NCCL_DEBUG", "WARN"),
            had("PATH", "/bin"),
        ];
        let set = Arm::Default.environment(Path::new("/log"));
        let value = |name: &str| set.iter().find(|(n, _)| n == name).unwrap().1.clone();
        assert_eq!(value("NCCL_P2P_DISABLE"), None);
        assert_eq!(value("NCCL_P2P_LEVEL"), None);
        assert_eq!(value("NCCL_DEBUG_FILE"), Some("/log".to_string()));
        assert_eq!(
            Arm::Default.told(&operator),
            [
                "set aside for this arm: NCCL_P2P_DISABLE=1",
                "set aside for this arm: NCCL_DEBUG=WARN",
                "inherited: NCCL_NVLS_ENABLE=0",
            ]
        );
        let set = Arm::P2pOff.environment(Path::new("/log"));
        assert!(set.contains(&("NCCL_P2P_DISABLE".to_string(), Some("1".to_string()))));
    }

    #[test]
    fn a_setting_out_of_a_file_is_seen_in_the_log() {
        let log = [("NCCL_P2P_DISABLE".to_string(), "1".to_string())];
        assert!(Arm::Default.foreign(&log).unwrap().contains("nccl.conf"));
        assert_eq!(Arm::P2pOff.foreign(&log), None);
        let level = [("NCCL_P2P_LEVEL".to_string(), "SYS".to_string())];
        assert_eq!(Arm::P2pSys.foreign(&level), None);
        assert!(Arm::P2pOff.foreign(&level).is_some());
    }
}
