//! The state of the screen: what was answered last, and what the user has chosen.

use std::collections::HashMap;

use millstream_control::proto::{Feed, JobState, ListReply, Snapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::feed::{Answer, Page};
use super::rows::{Row, Sort, busy_cores, seconds_between};
use super::series::Series;

/// How far the page keys move.
const PAGE_ROWS: isize = 10;

/// The maximum length of a filter.
const MAX_FILTER: usize = 64;

/// The state of the screen.
#[derive(Default)]
pub(super) struct Model {
    /// The newest answer; `None` before the first.
    pub(super) snapshot: Option<Snapshot>,
    /// The cores that the daemon's own process kept busy since the answer before.
    pub(super) daemon_cores: Option<f64>,
    /// All jobs, in the order of the screen.
    rows: Vec<Row>,
    /// The feeds of other trainers.
    pub(super) feeds: Vec<Feed>,
    /// Older jobs that were not listed.
    pub(super) omitted: u64,
    /// Rates and losses of the jobs that are running.
    trends: HashMap<String, Trend>,
    /// The page of the opened job, once it was answered.
    page: Option<Page>,
    /// Why the daemon does not answer.
    pub(super) lost: Option<String>,
    /// What the last change came to.
    pub(super) notice: Option<String>,
    selected: Option<String>,
    opened: Option<String>,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    pub(super) dialog: Dialog,
}

/// What keys mean at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialog {
    /// Commands.
    #[default]
    None,
    /// Letters of the filter.
    Filter,
    /// Any key closes the list of keys.
    Help,
    /// Yes or no to a change of a job.
    Confirm(Change, String),
}

/// A change of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Cancel,
    Pause,
    Resume,
    Checkpoint,
}

/// What the user wants from the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Quit,
    Change(Change, String),
}

/// The last numbers of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Trend {
    pub(super) rate: Series,
    pub(super) loss: Series,
}

impl Change {
    /// A question before a change that takes something away.
    fn question(self) -> Option<&'static str> {
        match self {
            Self::Cancel => Some("Save a checkpoint of this job and cancel it?"),
            Self::Pause => Some("Save a checkpoint of this job and pause it?"),
            Self::Resume | Self::Checkpoint => None,
        }
    }
}

impl Dialog {
    /// The question that it asks, if it does.
    pub(super) fn question(&self) -> Option<String> {
        match self {
            Self::Confirm(change, id) => Some(format!("{id}: {} [y/n]", change.question()?)),
            _ => None,
        }
    }
}

impl Model {
    /// Takes an answer.
    pub(super) fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Look { snapshot, jobs, feeds, page } => {
                self.lost = None;
                self.feeds = feeds;
                self.page = page.map(|page| *page);
                self.looked(*snapshot, jobs);
            }
            Answer::Lost(why) => self.lost = Some(why),
            Answer::Changed(text) => self.notice = Some(text),
        }
    }

    fn looked(&mut self, snapshot: Snapshot, ListReply { jobs, omitted }: ListReply) {
        let before = self.snapshot.as_ref();
        let seconds = seconds_between(before, &snapshot);
        let process_before = before.and_then(|before| before.process);
        self.daemon_cores = busy_cores(process_before.as_ref(), snapshot.process.as_ref(), seconds);
        self.rows = Row::all(jobs, &snapshot, before);
        self.omitted = omitted;
        self.trends.retain(|id, _| self.rows.iter().any(|row| row.is_running() && row.job.id == *id));
        for row in self.rows.iter().filter(|row| row.is_running()) {
            if let Some(progress) = row.training() {
                let trend = self.trends.entry(row.job.id.clone()).or_default();
                trend.rate.push(progress.examples_per_second);
                trend.loss.push(progress.loss);
            }
        }
        self.snapshot = Some(snapshot);
        self.order();
        if self.selected().is_none() {
            self.selected = self.shown().first().map(|row| row.job.id.clone());
        }
    }

    fn order(&mut self) {
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        self.rows.sort_by(|one, other| {
            let order = sort.compare(one, other);
            if is_reversed { order.reverse() } else { order }
        });
    }

    /// The jobs that pass the filter, in the order of the screen.
    pub(super) fn shown(&self) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.matches(&self.filter)).collect()
    }

    /// The number of all listed jobs.
    pub(super) fn listed(&self) -> usize {
        self.rows.len()
    }

    /// The position of the selected job among those shown.
    pub(super) fn selected(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.shown().iter().position(|row| row.job.id == *selected)
    }

    /// The last numbers of a running job.
    pub(super) fn trend(&self, id: &str) -> Option<&Trend> {
        self.trends.get(id)
    }

    /// The id of the opened job.
    pub(super) fn opened(&self) -> Option<&str> {
        self.opened.as_deref()
    }

    /// The opened job.
    pub(super) fn opened_row(&self) -> Option<&Row> {
        let opened = self.opened.as_ref()?;
        self.rows.iter().find(|row| row.job.id == *opened)
    }

    /// The page of the opened job, once it was answered.
    pub(super) fn page(&self) -> Option<&Page> {
        self.page.as_ref().filter(|page| Some(page.id.as_str()) == self.opened())
    }

    /// The cores that the daemon and the workers kept busy.
    pub(super) fn cores(&self) -> Option<f64> {
        let workers: f64 = self.rows.iter().filter_map(|row| row.cores).sum();
        Some(self.daemon_cores? + workers)
    }

    /// Takes a key.
    pub(super) fn pressed(&mut self, key: KeyEvent) -> Option<Wish> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Some(Wish::Quit);
        }
        self.notice = None;
        match std::mem::take(&mut self.dialog) {
            Dialog::Filter => self.typed(key.code),
            Dialog::Help => {}
            Dialog::Confirm(change, id) => {
                return (key.code == KeyCode::Char('y')).then_some(Wish::Change(change, id));
            }
            Dialog::None => return self.commanded(key.code),
        }
        None
    }

    fn typed(&mut self, key: KeyCode) {
        self.dialog = Dialog::Filter;
        match key {
            KeyCode::Char(letter) if self.filter.len() < MAX_FILTER => self.filter.push(letter),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.dialog = Dialog::None,
            KeyCode::Esc => {
                self.filter.clear();
                self.dialog = Dialog::None;
            }
            _ => {}
        }
        if self.selected().is_none() {
            self.moved(0);
        }
    }

    fn commanded(&mut self, key: KeyCode) -> Option<Wish> {
        match key {
            KeyCode::Char('q') => return Some(Wish::Quit),
            KeyCode::Char('?' | 'h') => self.dialog = Dialog::Help,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => match self.opened.take() {
                Some(_) => self.page = None,
                None => self.filter.clear(),
            },
            KeyCode::Up | KeyCode::Char('k') => self.moved(-1),
            KeyCode::Down | KeyCode::Char('j') => self.moved(1),
            KeyCode::PageUp => self.moved(-PAGE_ROWS),
            KeyCode::PageDown => self.moved(PAGE_ROWS),
            KeyCode::Home => self.moved(isize::MIN),
            KeyCode::End => self.moved(isize::MAX),
            KeyCode::Enter | KeyCode::Right => self.opened = self.selected.clone(),
            KeyCode::Char('/') if self.opened.is_none() => self.dialog = Dialog::Filter,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.order();
            }
            KeyCode::Char('S') => {
                self.is_reversed = !self.is_reversed;
                self.order();
            }
            KeyCode::Char('c') => return self.change(Change::Cancel),
            KeyCode::Char('p') => return self.change(Change::Pause),
            KeyCode::Char('r') => return self.change(Change::Resume),
            KeyCode::Char('w') => return self.change(Change::Checkpoint),
            _ => {}
        }
        None
    }

    /// Selects the job so many rows below. An opened page shows it.
    fn moved(&mut self, rows: isize) {
        let shown = self.shown();
        let last = shown.len().saturating_sub(1);
        let at = self.selected().unwrap_or_default().saturating_add_signed(rows).min(last);
        self.selected = shown.get(at).map(|row| row.job.id.clone());
        if self.opened.is_some() {
            self.opened = self.selected.clone();
        }
    }

    /// A change of the selected job, or a question before it.
    fn change(&mut self, change: Change) -> Option<Wish> {
        let shown = self.shown();
        let row = shown.get(self.selected()?)?;
        let (id, state) = (row.job.id.clone(), row.job.state());
        if let Err(why) = is_possible(change, state) {
            self.notice = Some(format!("{id} is {state}: {why}"));
            return None;
        }
        if change.question().is_some() {
            self.dialog = Dialog::Confirm(change, id);
            return None;
        }
        Some(Wish::Change(change, id))
    }
}

/// Why a job in this state cannot be changed so.
fn is_possible(change: Change, state: JobState) -> Result<(), &'static str> {
    let has_ended = state.is_final() && !state.awaits_user();
    match change {
        Change::Cancel if has_ended => Err("there is nothing to cancel"),
        Change::Pause if state.is_final() => Err("there is nothing to pause"),
        Change::Resume if !state.is_final() || state == JobState::Succeeded => {
            Err("there is nothing to resume")
        }
        Change::Checkpoint if state != JobState::Running => Err("only a running job saves checkpoints"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::job;
    use super::*;

    fn key(model: &mut Model, code: KeyCode) -> Option<Wish> {
        model.pressed(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn letters(model: &mut Model, text: &str) -> Option<Wish> {
        text.chars().map(|letter| key(model, KeyCode::Char(letter))).last().flatten()
    }

    fn model() -> Model {
        let jobs = vec![
            job("a", JobState::Running, 1),
            job("b", JobState::Queued, 2),
            job("c", JobState::Failed, 3),
        ];
        let mut model = Model::default();
        let (snapshot, jobs) = (Box::default(), ListReply { jobs, omitted: 0 });
        model.answered(Answer::Look { snapshot, jobs, feeds: Vec::new(), page: None });
        model
    }

    #[test]
    fn the_selection_follows_its_job() {
        let mut model = model();
        assert_eq!(model.selected(), Some(0));
        key(&mut model, KeyCode::Down);
        assert_eq!(model.selected(), Some(1));
        letters(&mut model, "S");
        assert_eq!(model.shown()[1].job.id, "b", "reversed, the middle stays");
        key(&mut model, KeyCode::Home);
        assert_eq!(model.shown()[model.selected().unwrap_or(9)].job.id, "c");
        for _ in 0..9 {
            key(&mut model, KeyCode::Down);
        }
        assert_eq!(model.selected(), Some(2));
    }

    #[test]
    fn a_filter_narrows_the_jobs_and_moves_the_selection() {
        let mut model = model();
        letters(&mut model, "/que");
        assert_eq!(model.dialog, Dialog::Filter);
        key(&mut model, KeyCode::Enter);
        assert_eq!((model.shown().len(), model.selected()), (1, Some(0)));
        // While a filter is typed, letters are no commands.
        assert_eq!(letters(&mut model, "/q"), None);
        key(&mut model, KeyCode::Esc);
        assert_eq!(model.shown().len(), 3);
    }

    #[test]
    fn taking_away_asks_first() {
        let mut model = model();
        assert_eq!(letters(&mut model, "c"), None);
        assert!(model.dialog.question().is_some_and(|question| question.starts_with("a: ")));
        assert_eq!(letters(&mut model, "n"), None);
        assert_eq!(letters(&mut model, "cy"), Some(Wish::Change(Change::Cancel, "a".into())));
        assert_eq!(letters(&mut model, "w"), Some(Wish::Change(Change::Checkpoint, "a".into())));
    }

    #[test]
    fn impossible_changes_are_explained() {
        let mut model = model();
        for (keys, wanted) in [("r", "a is running"), ("jw", "b is queued"), ("jc", "c is failed")] {
            assert_eq!(letters(&mut model, keys), None);
            assert!(model.notice.as_deref().is_some_and(|notice| notice.starts_with(wanted)), "{keys}");
        }
        assert_eq!(letters(&mut model, "r"), Some(Wish::Change(Change::Resume, "c".into())));
    }

    #[test]
    fn a_page_is_that_of_the_opened_job() {
        let mut model = model();
        key(&mut model, KeyCode::Enter);
        assert_eq!(model.opened(), Some("a"));
        let page = |id: &str| Some(Box::new(Page { id: id.into(), ..Page::default() }));
        let look = |page| Answer::Look {
            snapshot: Box::default(),
            jobs: ListReply::default(),
            feeds: Vec::new(),
            page,
        };
        model.answered(look(page("b")));
        assert!(model.page().is_none(), "an answer about the job that was opened before");
        model.answered(look(page("a")));
        assert!(model.page().is_some());
        key(&mut model, KeyCode::Esc);
        assert_eq!(model.opened(), None);
        assert_eq!(letters(&mut model, "q"), Some(Wish::Quit));
    }

    #[test]
    fn a_daemon_that_does_not_answer_leaves_the_last_picture() {
        let mut model = model();
        model.answered(Answer::Lost("no daemon listens".into()));
        assert_eq!((model.shown().len(), model.lost.is_some()), (3, true));
        model.answered(Answer::Look {
            snapshot: Box::default(),
            jobs: ListReply::default(),
            feeds: Vec::new(),
            page: None,
        });
        assert_eq!(model.lost, None);
    }
}
