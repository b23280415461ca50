//! "Did you mean ...?": the closest word by edit distance.

/// The word of `candidates` that `written` was most likely meant to be. Up to two of its letters
/// may be inserted, deleted, changed or swapped. In a long word up to a third of the letters may
/// be, in a short word fewer than half: `on` is not meant to be `off`, nor `tx` to be `rx`. `None`
/// if no word is that close.
pub fn closest<'a>(written: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // The time to compute a distance is the product of both lengths. A word of twice the longest candidate's length is
    // no typing error.
    let longest = candidates.iter().map(|word| word.len()).max().unwrap_or(0);
    if written.len() > 2 * longest {
        return None;
    }
    let written = written.to_ascii_lowercase().replace('-', "_");
    candidates
        .iter()
        .map(|word| (strsim::damerau_levenshtein(&written, word), *word))
        .filter(|(distance, word)| {
            *distance <= (word.len() / 3).max(2) && 2 * *distance < written.len().max(word.len())
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::closest;

    #[test]
    fn a_short_word_is_not_taken_for_its_opposite() {
        for (written, choices) in [
            ("on", &["off", "configured", "snooped"][..]),
            ("tx", &["rx"]),
            ("rx", &["tx"]),
            ("udp", &["tcp"]),
            ("in", &["out"]),
        ] {
            assert_eq!(closest(written, choices), None, "{written}");
        }
        for (written, word) in
            [("of", "off"), ("tpa", "tap"), ("rat", "rate"), ("snoop", "snooped")]
        {
            assert_eq!(closest(written, &[word, "configured"]), Some(word));
        }
    }
}
