//! What the configuration space of a PCI function says: port type, ACS words, a hypervisor's P2P clique.
//!
//! The kernel gives every user the first 64 bytes and root the rest, and it cuts a read short without an error. So a
//! short read is a missing permission here, never "off" (facts: failures.md 3.3, 3.4, 3.7). Capabilities are read where
//! they lie, not as one block: in a guest each dword can cost an exit to the hypervisor.

use crate::model::{
    reading::{Absence, Reading},
    snapshot::AcsControl,
};
use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

/// Standard capability id of vendor specific capabilities.
const CAP_VENDOR: u8 = 0x09;
/// Standard capability id of PCI Express.
const CAP_EXPRESS: u8 = 0x10;
/// Extended capability id of Access Control Services.
const EXT_CAP_ACS: u16 = 0x000d;
/// Extended capability id of Address Translation Services.
const EXT_CAP_ATS: u16 = 0x000f;
/// Where extended configuration space begins.
const EXTENDED_BASE: u16 = 0x100;
/// Extended capabilities are dword aligned in 0x100 to 0xfff and at least two dwords long: no list is longer.
const EXTENDED_STEPS: usize = 480;
/// The same bound for the list in the first 256 bytes.
const STANDARD_STEPS: usize = 48;

/// Device/port type of the PCI Express capability, bits 7:4 of its flags word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpressPort {
    /// 4: root port.
    Root,
    /// 5: switch port towards the root.
    SwitchUpstream,
    /// 6: switch port away from the root.
    SwitchDownstream,
    /// Endpoints, bridges to conventional PCI, and types that this build does not know.
    Other(u8),
}

/// Configuration space of one function, read piece by piece.
#[derive(Debug)]
pub struct ConfigSpace {
    file: File,
    what: String,
}

impl ConfigSpace {
    /// Opens a sysfs `config` file for reading.
    ///
    /// # Errors
    /// The absence to report for everything in it.
    pub fn open(path: &Path) -> Result<Self, Absence> {
        let what = path.display().to_string();
        match File::open(path) {
            Ok(file) => Ok(ConfigSpace { file, what }),
            Err(error) => Err(super::sysfs::absence_of(&error, &what)),
        }
    }

    /// Reads `N` bytes at `offset`; `Ok(None)` where the file ends before.
    fn bytes<const N: usize>(&self, offset: u16) -> Result<Option<[u8; N]>, Absence> {
        let mut buffer = [0_u8; N];
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, u64::from(offset) + filled as u64) {
                Ok(0) => return Ok(None),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(super::sysfs::absence_of(&error, &self.what)),
            }
        }
        Ok(Some(buffer))
    }

    /// Byte in the part that only root may read.
    fn privileged<const N: usize>(&self, offset: u16) -> Result<[u8; N], Absence> {
        self.bytes(offset)?.ok_or_else(|| {
            Absence::NoPermission(format!(
                "{}: ends after 64 bytes for this user; the rest needs CAP_SYS_ADMIN",
                self.what
            ))
        })
    }

    /// Checks that the function answers and that more than the header can be read.
    fn readable(&self) -> Result<(), Absence> {
        match self.bytes::<4>(0)? {
            None => return Err(Absence::Unparsed(format!("{}: empty", self.what))),
            Some([0xff, 0xff, 0xff, 0xff]) => {
                return Err(Absence::Failed(format!(
                    "{}: reads all ones: the device is gone or powered down",
                    self.what
                )));
            }
            Some(_) => {}
        }
        self.privileged::<1>(0x40).map(|_| ())
    }

    /// Walks the standard capability list; `visit` gets id and offset and stops the walk by answering `true`.
    fn walk_standard(
        &self,
        mut visit: impl FnMut(u8, u16) -> Result<bool, Absence>,
    ) -> Result<(), Absence> {
        self.readable()?;
        let [status, _] = self.privileged::<2>(0x06)?;
        // Status bit 4: a capability list exists.
        if status & 0x10 == 0 {
            return Ok(());
        }
        let [first] = self.privileged::<1>(0x34)?;
        let mut at = u16::from(first & 0xfc);
        for _ in 0..STANDARD_STEPS {
            if at < 0x40 {
                break;
            }
            let [id, next] = self.privileged::<2>(at)?;
            if id == 0xff || visit(id, at)? {
                break;
            }
            at = u16::from(next & 0xfc);
        }
        Ok(())
    }

    /// Type of the port from the PCI Express capability; `Known(None)` for a function that is not PCI Express.
    pub fn port(&self) -> Reading<Option<ExpressPort>> {
        let mut port = None;
        let walked = self.walk_standard(|id, at| {
            if id != CAP_EXPRESS {
                return Ok(false);
            }
            let [flags, _] = self.privileged::<2>(at + 2)?;
            port = Some(match flags >> 4 {
                4 => ExpressPort::Root,
                5 => ExpressPort::SwitchUpstream,
                6 => ExpressPort::SwitchDownstream,
                other => ExpressPort::Other(other),
            });
            Ok(true)
        });
        as_reading(walked.map(|()| port))
    }

    /// ACS words; both 0 when extended space can be read and holds no ACS capability.
    pub fn acs(&self) -> Reading<AcsControl> {
        as_reading(self.find_acs())
    }

    fn find_acs(&self) -> Result<AcsControl, Absence> {
        let Some(at) = self.find_extended(EXT_CAP_ACS)? else {
            return Ok(AcsControl {
                capability: 0,
                control: 0,
            });
        };
        let [c0, c1, w0, w1] = self.inside(at, 4)?;
        Ok(AcsControl {
            capability: u16::from_le_bytes([c0, c1]),
            control: u16::from_le_bytes([w0, w1]),
        })
    }

    /// Whether the function asks for address translations itself (ATS control, bit 15); `Known(None)` without the
    /// capability.
    pub fn ats(&self) -> Reading<Option<bool>> {
        let found = self.find_extended(EXT_CAP_ATS);
        as_reading(found.and_then(|at| {
            let Some(at) = at else {
                return Ok(None);
            };
            let [_, high] = self.inside(at, 6)?;
            Ok(Some(high & 0x80 != 0))
        }))
    }

    /// Bytes of the capability at `at`.
    fn inside<const N: usize>(&self, at: u16, offset: u16) -> Result<[u8; N], Absence> {
        self.bytes(at + offset)?.ok_or_else(|| {
            Absence::Unparsed(format!("{}: capability at {at:#x} is cut off", self.what))
        })
    }

    /// Where an extended capability lies; `None` when extended space can be read and does not hold it.
    fn find_extended(&self, wanted: u16) -> Result<Option<u16>, Absence> {
        self.readable()?;
        let mut at = EXTENDED_BASE;
        for _ in 0..EXTENDED_STEPS {
            let Some(header) = self.bytes::<4>(at)? else {
                if at == EXTENDED_BASE {
                    // 256 bytes only: a conventional device, or a machine without access to extended space. The port
                    // may well have the capability, so this is not "none".
                    return Err(Absence::NotSupported(format!(
                        "{}: no extended configuration space visible",
                        self.what
                    )));
                }
                return Err(Absence::Unparsed(format!(
                    "{}: capability list leaves the file at {at:#x}",
                    self.what
                )));
            };
            let header = u32::from_le_bytes(header);
            if header == 0 || header == u32::MAX {
                break;
            }
            if header & 0xffff == u32::from(wanted) {
                return Ok(Some(at));
            }
            at = (header >> 20) as u16 & 0xffc;
            if at < EXTENDED_BASE {
                break;
            }
        }
        Ok(None)
    }

    /// GPUDirect P2P clique that a hypervisor wrote into a vendor capability: length 8, "P2P", clique in bits 6:3 of
    /// byte 6. `Known(None)` when the list was read to its end without one.
    pub fn p2p_clique(&self) -> Reading<Option<u32>> {
        let mut clique = None;
        let walked = self.walk_standard(|id, at| {
            if id != CAP_VENDOR {
                return Ok(false);
            }
            let [_, _, length, p, two, q, value, _] = self.privileged::<8>(at)?;
            if length == 8 && [p, two, q] == *b"P2P" {
                clique = Some(u32::from(value >> 3 & 0x0f));
            }
            Ok(clique.is_some())
        });
        as_reading(walked.map(|()| clique))
    }
}

fn as_reading<T>(result: Result<T, Absence>) -> Reading<T> {
    match result {
        Ok(value) => Reading::Known(value),
        Err(absence) => Reading::Absent(absence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn space(bytes: &[u8]) -> (tempfile::TempDir, ConfigSpace) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, bytes).unwrap();
        let space = ConfigSpace::open(&path).unwrap();
        (folder, space)
    }

    /// A downstream switch port with the ACS words of failures.md F22, behind another extended capability.
    fn port_with_acs() -> Vec<u8> {
        let mut bytes = vec![0_u8; 4096];
        bytes[0..4].copy_from_slice(&[0xb5, 0x10, 0x96, 0x87]);
        bytes[6] = 0x10;
        bytes[0x34] = 0x40;
        bytes[0x40..0x42].copy_from_slice(&[0x01, 0x68]);
        bytes[0x68..0x6c].copy_from_slice(&[0x10, 0x00, 0x62, 0x01]);
        bytes[0x100..0x104].copy_from_slice(&(0x0001_u32 | 1 << 16 | 0x148 << 20).to_le_bytes());
        bytes[0x148..0x14c].copy_from_slice(&(0x000d_u32 | 1 << 16).to_le_bytes());
        bytes[0x14c..0x150].copy_from_slice(&[0x5f, 0x00, 0x1d, 0x00]);
        bytes
    }

    #[test]
    fn acs_and_port_type_of_a_switch_port() {
        let (_folder, space) = space(&port_with_acs());
        let acs = space.acs().into_known().unwrap();
        assert_eq!((acs.capability, acs.control), (0x5f, 0x1d));
        assert!(acs.redirects());
        assert_eq!(
            space.port(),
            Reading::Known(Some(ExpressPort::SwitchDownstream))
        );
        assert_eq!(space.p2p_clique(), Reading::Known(None));
    }

    #[test]
    fn address_translation_services_are_on_off_or_not_there() {
        let mut bytes = port_with_acs();
        let (_none, space_without) = space(&bytes);
        assert_eq!(space_without.ats(), Reading::Known(None));
        bytes[0x148] = 0x0f;
        let (_off, space_off) = space(&bytes);
        assert_eq!(space_off.ats(), Reading::Known(Some(false)));
        bytes[0x14f] = 0x80;
        let (_on, space_on) = space(&bytes);
        assert_eq!(space_on.ats(), Reading::Known(Some(true)));
        let (_short, space_short) = space(&bytes[..64]);
        assert!(matches!(
            space_short.ats(),
            Reading::Absent(Absence::NoPermission(_))
        ));
    }

    #[test]
    fn sixty_four_bytes_are_a_missing_permission_not_off() {
        let (_folder, space) = space(&port_with_acs()[..64]);
        for absence in [
            space.acs().absence().cloned(),
            space.port().absence().cloned(),
            space.p2p_clique().absence().cloned(),
        ] {
            assert!(
                matches!(absence, Some(Absence::NoPermission(_))),
                "{absence:?}"
            );
        }
    }

    #[test]
    fn without_extended_space_acs_is_unknown_and_with_it_none() {
        let (_a, short) = space(&port_with_acs()[..256]);
        assert!(matches!(
            short.acs(),
            Reading::Absent(Absence::NotSupported(_))
        ));
        let mut bytes = port_with_acs();
        bytes[0x148] = 0x0e;
        let (_b, other) = space(&bytes);
        let acs = other.acs().into_known().unwrap();
        assert_eq!((acs.capability, acs.control), (0, 0));
    }

    #[test]
    fn a_device_that_fell_off_the_bus_says_so() {
        let (_folder, space) = space(&[0xff; 4096]);
        assert!(matches!(space.acs(), Reading::Absent(Absence::Failed(_))));
    }

    #[test]
    fn clique_is_read_from_bits_six_to_three() {
        let mut bytes = vec![0_u8; 256];
        bytes[0] = 0xde;
        bytes[6] = 0x10;
        bytes[0x34] = 0xc8;
        bytes[0xc8..0xd0].copy_from_slice(&[0x09, 0x00, 0x08, b'P', b'2', b'P', 5 << 3, 0]);
        let (_folder, space) = space(&bytes);
        assert_eq!(space.p2p_clique(), Reading::Known(Some(5)));
    }

    #[test]
    fn circular_lists_end() {
        let mut bytes = vec![0_u8; 4096];
        bytes[0] = 0xde;
        bytes[6] = 0x10;
        bytes[0x34] = 0x40;
        bytes[0x40..0x42].copy_from_slice(&[0x01, 0x40]);
        bytes[0x100..0x104].copy_from_slice(&(0x0001_u32 | 0x100 << 20).to_le_bytes());
        let (_folder, space) = space(&bytes);
        assert_eq!(space.port(), Reading::Known(None));
        assert_eq!(space.acs().into_known().unwrap().control, 0);
    }

    proptest! {
        #[test]
        fn no_content_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let (_folder, space) = space(&bytes);
            let _ = (space.acs(), space.ats(), space.port(), space.p2p_clique());
        }
    }
}
