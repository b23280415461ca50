//! Documents of the repository: blocks of code, for tests that run them, and JSON with a line for
//! each thing that a reader compares.

use serde_json::Value;

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

/// Writes `value` with a line for each part that lies below `depth` objects and arrays. The
/// contents of a part are on its line.
#[must_use]
pub fn in_lines(value: &Value, depth: usize) -> String {
    let mut text = String::new();
    write(value, depth, "\n", &mut text);
    text.push('\n');
    text
}

/// `indent` is a line's end and the spaces of the next one.
fn write(value: &Value, depth: usize, indent: &str, text: &mut String) {
    let deeper = format!("{indent}  ");
    let mut separator = deeper.as_str();
    let next = format!(",{deeper}");
    let mut begin = |text: &mut String| text.push_str(std::mem::replace(&mut separator, &next));
    match value {
        // An object's only field is on the object's line.
        Value::Object(fields) if depth > 0 && fields.len() == 1 => {
            for (name, field) in fields {
                *text += &format!("{{{}: ", Value::from(name.as_str()));
                write(field, depth - 1, indent, text);
                text.push('}');
            }
        }
        Value::Object(fields) if depth > 0 && !fields.is_empty() => {
            text.push('{');
            for (name, field) in fields {
                begin(text);
                *text += &format!("{}: ", Value::from(name.as_str()));
                write(field, depth - 1, &deeper, text);
            }
            *text += indent;
            text.push('}');
        }
        Value::Array(items) if depth > 0 && !items.is_empty() => {
            text.push('[');
            for item in items {
                begin(text);
                write(item, depth - 1, &deeper, text);
            }
            *text += indent;
            text.push(']');
        }
        _ => *text += &value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    #[test]
    fn parts_at_the_depth_have_a_line_each_and_nothing_is_lost() {
        let value = json!({ "a": { "x": [1, 2], "\"y": {} }, "b": [[3], {}], "c": [], "d": null });
        let text = in_lines(&value, 2);
        let lines = [
            "{",
            "  \"a\": {",
            "    \"\\\"y\": {},",
            "    \"x\": [1,2]",
            "  },",
            "  \"b\": [",
            "    [3],",
            "    {}",
            "  ],",
            "  \"c\": [],",
            "  \"d\": null",
            "}",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert_eq!(in_lines(&value, 0).lines().count(), 1);
        let only = json!({"a": {"b": {"x": [1], "y": 2}}});
        let lines = ["{\"a\": {\"b\": {", "  \"x\": [1],", "  \"y\": 2", "}}}"];
        assert_eq!(in_lines(&only, 3).lines().collect::<Vec<_>>(), lines);
    }
}
