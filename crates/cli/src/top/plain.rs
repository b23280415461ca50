//! Tables and JSON, for use without a terminal.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use weir_config::Defaults;
use weir_text::plain::{Obeyed, Plain};
use weir_text::{Table, uptime};

use super::asker::look;
use super::columns::Column;
use super::rates::Rates;
use super::state::listed;
use crate::args::TopArgs;
use crate::commands::CommandError;

/// Prints once, or repeatedly until the reader stops or weir ends.
pub(super) fn run(
    args: &TopArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let control = defaults.control.as_path();
    let mut out = Plain::new(out, Obeyed::Lines);
    let mut before = look(control, None)?.stats;
    loop {
        thread::sleep(Duration::from_secs(args.interval.into()));
        let now = look(control, None)?.stats;
        let mut rates = Rates::between(Some(&before), &now);
        before = now;
        let chosen = listed(&rates, args.filter.as_deref().unwrap_or(""), args.sort, false);
        let chosen = chosen.into_iter().cloned().collect();
        match (args.json, args.once) {
            (true, once) => {
                rates.ports = chosen;
                match once {
                    true => serde_json::to_writer_pretty(&mut out, &rates),
                    false => serde_json::to_writer(&mut out, &rates),
                }
                .map_err(io::Error::from)?;
                writeln!(out)?;
            }
            (false, _) => {
                write!(out, "{}", head(&rates))?;
                rates.ports = chosen;
                writeln!(out, "{}", table(&rates))?;
            }
        }
        out.flush()?;
        if args.once {
            return Ok(());
        }
    }
}

/// The line above the table.
pub(super) fn head(rates: &Rates) -> String {
    format!(
        "weir {}, up {}, workers {}, CPU {:.1} % of a core, ports {}\n",
        rates.version,
        uptime(rates.uptime_s),
        rates.workers,
        rates.workers_cpu_percent,
        rates.ports.len()
    )
}

/// All columns.
pub(super) fn table(rates: &Rates) -> Table {
    let headers = Column::ALL.map(|column| match column {
        Column::Name => "<NAME",
        Column::State => "<STATE",
        Column::Reason => "<DROP REASON",
        Column::Why => "<HELD BECAUSE",
        other => other.header(),
    });
    let mut table = Table::new(&headers);
    for port in &rates.ports {
        table.row(Column::ALL.iter().map(|column| column.cell(port)).collect());
    }
    table
}
