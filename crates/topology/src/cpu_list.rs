//! Lists of processors in the kernel's form (`cpulist`, Documentation/admin-guide/cputopology.rst).

use std::collections::BTreeSet;

use thiserror::Error;
use weir_limits::CPUS_MAX;

/// Error in a list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpuListError {
    /// A part is neither a number nor a range of two.
    #[error("{0:?} is neither a number nor a range such as 0-3")]
    Part(String),
    /// A range ends before it begins.
    #[error("the range {0} ends before it begins")]
    Backward(String),
    /// A number exceeds weir's limit.
    #[error("there is no CPU {0}: the largest number is {max}", max = CPUS_MAX - 1)]
    TooLarge(u64),
}

/// Reads a list such as `0-3,8`, with or without a final newline. The empty list is valid.
pub fn parse_cpu_list(text: &str) -> Result<BTreeSet<u16>, CpuListError> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let mut cpus = BTreeSet::new();
    if text.is_empty() {
        return Ok(cpus);
    }
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first, part)?, number(last, part)?);
        if first > last {
            return Err(CpuListError::Backward(part.into()));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

fn number(digits: &str, part: &str) -> Result<u16, CpuListError> {
    // `parse` would accept a sign.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CpuListError::Part(part.into()));
    }
    // A row of digits can only fail by its length.
    let number: u64 = digits.parse().unwrap_or(u64::MAX);
    let known = u16::try_from(number).ok().filter(|number| usize::from(*number) < CPUS_MAX);
    known.ok_or(CpuListError::TooLarge(number))
}

/// Writes processors in the kernel's form: `0-3,8`.
pub fn cpu_list(cpus: &BTreeSet<u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*cpu) => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let texts = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_numbers_and_ranges() {
        let cpus = |numbers: &[u16]| Ok(numbers.iter().copied().collect());
        assert_eq!(parse_cpu_list("0-3,8\n"), cpus(&[0, 1, 2, 3, 8]));
        assert_eq!(parse_cpu_list("7"), cpus(&[7]));
        assert_eq!(parse_cpu_list("\n"), cpus(&[]));
        assert_eq!(parse_cpu_list("1023"), cpus(&[1023]));
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_part() {
        let part = |text: &str| Err(CpuListError::Part(text.into()));
        for (list, bad) in
            [("0,", ""), ("a", "a"), ("0-", "0-"), ("1-2-3", "1-2-3"), ("+1", "+1"), ("0, 1", " 1")]
        {
            assert_eq!(parse_cpu_list(list), part(bad), "{list}");
        }
        assert_eq!(parse_cpu_list("0\n\n"), part("0\n"));
        assert_eq!(parse_cpu_list("3-1"), Err(CpuListError::Backward("3-1".into())));
        assert_eq!(parse_cpu_list("0-1024"), Err(CpuListError::TooLarge(1024)));
        assert_eq!(parse_cpu_list("0-99999999999999999999"), Err(CpuListError::TooLarge(u64::MAX)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            cpus in proptest::collection::btree_set(0..CPUS_MAX as u16, 0..40)
        ) {
            prop_assert_eq!(parse_cpu_list(&cpu_list(&cpus)), Ok(cpus));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,\\-\\n x]{0,24}") {
            if let Ok(cpus) = parse_cpu_list(&text) {
                prop_assert!(cpus.iter().all(|cpu| usize::from(*cpu) < CPUS_MAX));
            }
        }
    }
}
