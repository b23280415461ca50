//! Documents in JSON that stand in the repository: a line for each thing that a reader compares.

use serde_json::Value;

/// Writes `value` with a line for each part that lies below `depth` objects and arrays. What a part contains stands on
/// its line.
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
    }
}
