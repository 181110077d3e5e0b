//! How far the command is, on stderr: a bar on a terminal, else a plain line when a piece of work
//! begins. Uses no colour. Does not know what the work is.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One piece of work on display; taken away when dropped.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins a piece of work of so many steps.
    pub(crate) fn begin(name: &str, steps: u64) -> Progress {
        if !io::stderr().is_terminal() {
            // Nobody is there to be told if stderr is closed.
            let _ = writeln!(io::stderr(), "{name}");
            return Progress { bar: None };
        }
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {percent:>3}% {eta}")
            .expect("the template is well formed")
            .progress_chars("=> ");
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        bar.set_style(style);
        bar.set_message(name.to_string());
        Progress { bar: Some(bar) }
    }

    /// Shows how many of the steps are done.
    pub(crate) fn at(&self, steps: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(steps);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
