//! Blocks of code in documents, for tests that run them.

/// The end of a comment that names the test of a block, or of a whole page if the comment is at its top.
const RUNS: &str = " runs these lines. -->";
const RUNS_ALL: &str = " runs all lines of this page. -->";

/// A block of code.
#[derive(Debug, PartialEq, Eq)]
pub struct Block<'d> {
    /// The text behind the fence; empty if there is none.
    pub language: &'d str,
    /// The number of the block's first line in the document.
    pub first: usize,
    /// The last line of text before the block.
    pub said: &'d str,
    /// The test that runs it, from the comment before it: a path relative to the repository's root.
    pub run_by: Option<&'d str>,
    /// The block's lines, without the indentation of its fence.
    pub lines: Vec<&'d str>,
}

impl<'d> Block<'d> {
    /// The shell commands, each with its line number: text behind `$ ` in a `console` block, and all lines but
    /// comments in a script. A backslash at the end of a line continues the command.
    pub fn commands(&self) -> Vec<(usize, String)> {
        let mut commands: Vec<(usize, String)> = Vec::new();
        let mut goes_on = false;
        for (line, number) in self.lines.iter().zip(self.first..) {
            let typed = match self.language {
                _ if goes_on => Some(*line),
                "console" => line.strip_prefix("$ "),
                "sh" if line.is_empty() || line.starts_with('#') => None,
                "sh" => Some(*line),
                _ => None,
            };
            let Some(typed) = typed else { continue };
            let whole = typed.strip_suffix('\\');
            let part = whole.unwrap_or(typed);
            match commands.last_mut().filter(|_| goes_on) {
                Some((_, command)) => command.push_str(part.trim_start()),
                None => commands.push((number, part.to_owned())),
            }
            goes_on = whole.is_some();
        }
        commands
    }
}

/// The test that a comment names.
fn named<'d>(line: &'d str, end: &str) -> Option<&'d str> {
    line.strip_prefix("<!-- ")?.strip_suffix(end)
}

/// The blocks of a document in Markdown.
pub fn blocks(document: &str) -> Vec<Block<'_>> {
    let of_page = document.lines().find_map(|line| named(line, RUNS_ALL));
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block<'_>)> = None;
    let (mut said, mut run_by) = ("", None);
    for (index, line) in document.lines().enumerate() {
        let text = line.trim_start();
        match (text.strip_prefix("```"), open.as_mut()) {
            (Some(_), Some(_)) => blocks.extend(open.take().map(|(_, block)| block)),
            (Some(language), None) => {
                let run_by = std::mem::take(&mut run_by).or(of_page);
                let block = Block { language, first: index + 2, said, run_by, lines: Vec::new() };
                open = Some((line.len() - text.len(), block));
            }
            (None, Some((indentation, block))) => {
                block.lines.push(line.get(*indentation..).unwrap_or_default());
            }
            (None, None) if text.starts_with("<!--") => run_by = named(line, RUNS),
            (None, None) if text.is_empty() => {}
            (None, None) => (said, run_by) = (line, None),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n\nSay:\n\n```sh\n# once\na --b \\\n  c   # d\n\ne\n```\n\nMore\n\n\
        <!-- tests/t.sh runs these lines. -->\n```console\n$ f\ng\n```\n\n1. In a list\n\n   ```toml\n   [h]\n     i = 1\n   ```\n";

    #[test]
    fn blocks_have_a_language_a_place_a_test_and_lines_without_indentation() {
        let block = |language, first, said, run_by, lines: &[&'static str]| Block {
            language,
            first,
            said,
            run_by,
            lines: lines.to_vec(),
        };
        let expected = [
            block("sh", 6, "Say:", None, &["# once", "a --b \\", "  c   # d", "", "e"]),
            block("console", 17, "More", Some("tests/t.sh"), &["$ f", "g"]),
            block("toml", 24, "1. In a list", None, &["[h]", "  i = 1"]),
        ];
        assert_eq!(blocks(PAGE), expected);
        let page = PAGE.replace("# A\n", "# A\n<!-- all.rs runs all lines of this page. -->\n");
        let run_by: Vec<_> = blocks(&page).iter().map(|block| block.run_by).collect();
        assert_eq!(run_by, [Some("all.rs"), Some("tests/t.sh"), Some("all.rs")]);
    }

    #[test]
    fn commands_are_what_is_typed() {
        let commands: Vec<_> = blocks(PAGE).iter().map(Block::commands).collect();
        let (first, second) =
            (vec![(7, "a --b c   # d".into()), (10, "e".into())], vec![(17, "f".into())]);
        assert_eq!(commands, [first, second, Vec::new()]);
    }
}
