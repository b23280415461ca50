//! The changes that a file would make to the running switch.

use std::fmt::Write as _;

use weir_config::reload::{Difference, DifferenceKind, KeyDifference, TableDifference};

/// A line for each table, and one for each key.
pub fn difference(difference: &Difference) -> String {
    let mut text = String::new();
    for table in &difference.tables {
        table_lines(&mut text, table);
    }
    if difference.is_empty() {
        text.push_str("nothing to change: weir runs as the file says\n");
    }
    text
}

/// The changes that `weir save` makes to a file, which are the reverse of the file's `difference`.
/// `left` is the difference of the file with these changes.
pub fn saved(difference: &Difference, left: &Difference) -> String {
    let mut text = String::new();
    for table in &difference.tables {
        let stays = left.tables.iter().find(|it| it.table == table.table);
        let kind = match table.kind {
            DifferenceKind::Changed => DifferenceKind::Changed,
            kind if stays.is_some_and(|it| it.kind == kind) => continue,
            DifferenceKind::Added => DifferenceKind::Removed,
            DifferenceKind::Removed | DifferenceKind::Unlisted => DifferenceKind::Added,
        };
        let mut keys = Vec::new();
        if kind == DifferenceKind::Changed {
            let is_left = |key: &KeyDifference| stays.is_some_and(|it| it.keys.contains(key));
            let back = |key: &KeyDifference| KeyDifference {
                key: key.key.clone(),
                from: key.to.clone(),
                to: key.from.clone(),
                alive: true,
                note: None,
            };
            keys.extend(table.keys.iter().filter(|key| !is_left(key)).map(back));
            if keys.is_empty() {
                continue;
            }
        }
        let table = table.table.clone();
        table_lines(&mut text, &TableDifference { table, kind, alive: true, note: None, keys });
    }
    text
}

// Writing to a string cannot fail.
fn table_lines(text: &mut String, table: &TableDifference) {
    let mark = match table.kind {
        _ if !table.alive => '!',
        DifferenceKind::Added => '+',
        DifferenceKind::Removed => '-',
        DifferenceKind::Changed => '~',
        DifferenceKind::Unlisted => '=',
    };
    // The mark of an impossible change does not show its kind, so it is written out.
    let what = match (table.alive, table.kind) {
        (false, DifferenceKind::Added) => "  cannot be added",
        (false, _) => "  cannot be removed",
        (true, _) => "",
    };
    let note = table.note.as_ref().map_or(String::new(), |note| match what {
        "" => format!("  {note}"),
        _ => format!(": {note}"),
    });
    let _ = writeln!(text, "{mark} {}{what}{note}", table.table);
    let width = table.keys.iter().map(|key| key.key.len()).max().unwrap_or(0);
    for key in &table.keys {
        key_line(text, key, table.kind, width);
    }
}

fn key_line(text: &mut String, key: &KeyDifference, kind: DifferenceKind, width: usize) {
    let value = |value: &'_ Option<String>| value.clone().unwrap_or_else(|| "default".into());
    let (name, to) = (&key.key, value(&key.to));
    let change = match kind {
        DifferenceKind::Changed => format!("{} -> {to}", value(&key.from)),
        _ => to,
    };
    let mark = if key.alive { ' ' } else { '!' };
    let note = match (&key.note, key.alive) {
        (None, _) => String::new(),
        (Some(note), true) => format!("  ({note})"),
        (Some(note), false) => format!("  (cannot change while weir runs: {note})"),
    };
    let _ = writeln!(text, "  {mark} {name:<width$}  {change}{note}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str, from: Option<&str>, to: Option<&str>, note: &str) -> KeyDifference {
        let (from, to) = (from.map(Into::into), to.map(Into::into));
        let note = (!note.is_empty()).then(|| note.into());
        KeyDifference { key: key.into(), from, to, alive: true, note }
    }

    fn table(name: &str, kind: DifferenceKind, keys: Vec<KeyDifference>) -> TableDifference {
        TableDifference { table: name.into(), kind, alive: true, note: None, keys }
    }

    #[test]
    fn each_kind_of_change_has_its_mark() {
        let workers = key("workers", Some("auto"), Some("2"), "needs a restart");
        let changed = vec![
            key("queues", Some("1"), Some("4"), "when its front end connects again"),
            key("latency_budget", Some("250us"), None, ""),
        ];
        let mut lan =
            table("uplink.lan", DifferenceKind::Added, vec![key("kind", None, Some("tap"), "")]);
        (lan.alive, lan.note) = (false, Some("needs a restart".into()));
        let mut gone = table("vif.old0", DifferenceKind::Removed, Vec::new());
        gone.note = Some("disconnects its guest".into());
        let mut by_hand = table("vif.tmp0", DifferenceKind::Unlisted, Vec::new());
        by_hand.note = Some("added by `weir vif add`; stays".into());
        let tables = vec![
            table(
                "switch",
                DifferenceKind::Changed,
                vec![KeyDifference { alive: false, ..workers }],
            ),
            lan,
            table("vif.web0", DifferenceKind::Changed, changed),
            gone,
            by_hand.clone(),
            table("vif.new0", DifferenceKind::Added, vec![key("vlan", None, Some("10"), "")]),
        ];
        let left = vec![tables[0].clone()];
        insta::assert_snapshot!(difference(&Difference { tables: tables.clone() }), @r"
        ~ switch
          ! workers  auto -> 2  (cannot change while weir runs: needs a restart)
        ! uplink.lan  cannot be added: needs a restart
            kind  tap
        ~ vif.web0
            queues          1 -> 4  (when its front end connects again)
            latency_budget  250us -> default
        - vif.old0  disconnects its guest
        = vif.tmp0  added by `weir vif add`; stays
        + vif.new0
            vlan  10
        ");
        let (file, left) = (Difference { tables: tables.clone() }, Difference { tables: left });
        insta::assert_snapshot!(saved(&file, &left), @r"
        - uplink.lan
        ~ vif.web0
            queues          4 -> 1
            latency_budget  default -> 250us
        + vif.old0
        + vif.tmp0
        - vif.new0
        ");
        assert_eq!(saved(&file, &file), "");
        insta::assert_snapshot!(difference(&Difference { tables: vec![by_hand] }), @r"
        = vif.tmp0  added by `weir vif add`; stays
        nothing to change: weir runs as the file says
        ");
    }
}
