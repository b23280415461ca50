//! Xen's report of its grant tables (debug key `g`).

use weir_bed::error::{Error, Result};

/// The debug key that makes Xen print all grants in use.
pub const REPORT_KEY: char = 'g';

/// Grants that the builder of a domain makes for its console and for xenstore (`GNTTAB_NR_RESERVED_ENTRIES`). dom0's
/// daemons keep them mapped.
const RESERVED: u32 = 8;

/// The content of one report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// Mapped grants of guests, without those of consoles and of xenstore.
    pub mapped: usize,
    /// The report, for a person.
    pub report: String,
}

impl Grants {
    /// Reads the last report in the output of `xl dmesg`.
    pub fn parse(dmesg: &str) -> Result<Self> {
        const START: &str = "gnttab_usage_print_all [ key 'g' pressed";
        const END: &str = "gnttab_usage_print_all ] done";
        let report = dmesg
            .rsplit_once(START)
            .and_then(|(_, report)| report.split_once(END))
            .map(|(report, _)| report)
            .ok_or_else(|| Error::parse("Xen's report on grants", dmesg))?;
        let mapped = report.lines().filter_map(reference).filter(|&number| number >= RESERVED);
        Ok(Self { mapped: mapped.count(), report: report.to_owned() })
    }
}

/// The reference in `(XEN) [0x301]      0 0x3f602 0x00000002  ...`, the line of an active entry.
fn reference(line: &str) -> Option<u32> {
    let number = line.split_once("[0x")?.1.split_once(']')?.0;
    u32::from_str_radix(number, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "(XEN) gnttab_usage_print_all [ key 'g' pressed\n\
        (XEN)       -------- active --------       -------- shared --------\n\
        (XEN) [ref] localdom mfn      pin          localdom gmfn     flags\n\
        (XEN) grant-table for remote d0 (v1)\n\
        (XEN)   1 frames (64 max), 2 maptrack frames (1024 max)\n\
        (XEN) no active grant table entries\n\
        (XEN) grant-table for remote d1 (v1)\n\
        (XEN) [0x000]      0 0x3f602 0x00000002          0 0x03f602 0x19\n\
        (XEN) [0x001]      0 0x3f601 0x00000002          0 0x03f601 0x19\n\
        (XEN) gnttab_usage_print_all ] done\n";

    #[test]
    fn the_grants_of_consoles_and_of_xenstore_do_not_count() {
        assert_eq!(Grants::parse(REPORT).unwrap().mapped, 0);
    }

    #[test]
    fn a_ring_that_is_mapped_counts() {
        let ring = "(XEN) [0x301]      0 0x3f602 0x00000001          0 0x03f602 0x19\n";
        let report = REPORT.replace(
            "(XEN) gnttab_usage_print_all ]",
            &format!("{ring}(XEN) gnttab_usage_print_all ]"),
        );
        assert_eq!(Grants::parse(&report).unwrap().mapped, 1);
    }

    #[test]
    fn the_last_report_is_read_and_no_report_is_an_error() {
        let older = REPORT.replace("[0x000]", "[0x300]");
        assert_eq!(Grants::parse(&format!("{older}{REPORT}")).unwrap().mapped, 0);
        assert!(Grants::parse("(XEN) nothing").is_err());
    }
}
