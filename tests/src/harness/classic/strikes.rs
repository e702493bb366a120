//! What happens to the classic: kills at exact steps of the protocol, checkpoints that fail, brokers and stores that are away.
//!
//! A process stops at a step ([`super::super::steps`]), then somebody is killed, it or others, then all is brought back. What
//! the one that stopped had sent before is on its way; what it would have done next it has not done.

use super::super::kafka;
use super::super::steps::Stopped;
use super::super::wait_for;
use super::{Classic, WAIT};
use nix::sys::signal::Signal;
use serde_json::json;
use sluice_node::steps::Step;
use sluice_protocol::status::JobState;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long after the first checkpoint behind a restart readers may be held up by what the kill left open: the abort of it is
/// not on the restart's path (S3).
const HELD_UP: Duration = Duration::from_secs(15);

/// When something dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A process has come to this step. To [`Step::AmidSettling`] and [`Step::Settled`] the successor of a JobManager that
    /// was killed amid its commits.
    At(Step),
    /// So long after the entry of a checkpoint: amid its commits, or behind them.
    AfterEntry(Duration),
}

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Victims {
    /// The JobManager; its TaskManagers go with it when its successor starts, as pods of an older generation do.
    pub job_manager: bool,
    /// So many TaskManagers, first the one that has stopped.
    pub task_managers: usize,
    /// The broker.
    pub broker: bool,
}

impl Classic {
    /// Kills at a moment, brings back what died, and waits until the job has completed a checkpoint again and no reader waits
    /// for what the kill left.
    pub fn strike(&mut self, moment: Moment, victims: Victims) {
        let attempt = self.attempt();
        let stopped = self.await_moment(moment);
        let killed = Instant::now();
        let doomed = self.kill(victims, stopped);
        self.recover(victims, doomed, attempt);
        println!("kill {}: {moment:?}: {victims:?}: well after {:?}", self.kills, killed.elapsed());
    }

    /// The number of the attempt that runs now.
    fn attempt(&self) -> u32 {
        self.job.status().map_or(0, |status| status.attempt.0)
    }

    fn await_moment(&mut self, moment: Moment) -> Option<Stopped> {
        match moment {
            Moment::At(step @ (Step::AmidSettling | Step::Settled)) => {
                self.stop_at(Step::AmidCommits);
                self.kill_job_manager();
                self.steps.arm(step);
                self.job.start_generation(self.parallelism);
                Some(self.steps.wait_stopped(step, WAIT))
            }
            Moment::At(step) => Some(self.stop_at(step)),
            Moment::AfterEntry(time) => {
                self.stop_at(Step::Appended).go_on();
                std::thread::sleep(time);
                None
            }
        }
    }

    fn stop_at(&self, step: Step) -> Stopped {
        self.steps.arm(step);
        self.steps.wait_stopped(step, WAIT)
    }

    fn kill_job_manager(&mut self) {
        self.job.kill_job_manager();
        self.kills += 1;
    }

    /// Brings back what died, so many TaskManagers among it, behind this attempt.
    fn recover(&mut self, victims: Victims, doomed: usize, attempt: u32) {
        if victims.broker {
            self.broker.restart();
        }
        let ends = || kafka::ends(&self.broker.address(), &self.output).ok();
        let written = wait_for("the output's ends", WAIT, ends).all;
        if victims.job_manager {
            self.job.start_generation(self.parallelism);
            self.wait_running_again(1);
        } else {
            for _ in 0..doomed {
                self.job.start_task_manager();
            }
            self.wait_running_again(attempt + u32::from(doomed > 0));
        }
        self.expect_nobody_waits(&written);
    }

    /// Kills, lets go on what has stopped and is not killed, and says how many TaskManagers are gone.
    fn kill(&mut self, victims: Victims, stopped: Option<Stopped>) -> usize {
        if victims.broker {
            self.broker.kill();
        }
        let mut left = stopped;
        if victims.job_manager {
            let id = self.job.job_manager.as_ref().map(|process| process.id());
            left = left.filter(|stopped| Some(stopped.process) != id);
            self.job.kill_job_manager();
        }
        let mut doomed: Vec<(u32, u32)> =
            self.job.task_managers.iter().map(|(index, process)| (*index, process.id())).collect();
        doomed.sort_by_key(|(_, id)| stopped.is_none_or(|stopped| stopped.process != *id));
        doomed.truncate(victims.task_managers);
        for (index, id) in &doomed {
            left = left.filter(|stopped| stopped.process != *id);
            self.job.kill_task_manager(*index);
        }
        self.kills += 1;
        if let Some(stopped) = left {
            stopped.go_on();
        }
        doomed.len()
    }

    /// Until the attempt runs and has completed a checkpoint that was triggered by now.
    fn wait_running_again(&self, attempt: u32) {
        let running = self.job.wait_status("it runs again", WAIT, |status| {
            status.state == JobState::Running && status.attempt.0 >= attempt
        });
        self.job.wait_checkpoint(running.completed_checkpoints + 1);
    }

    /// Until readers of committed results are past what was written before the kill.
    fn expect_nobody_waits(&self, written: &[i64]) {
        wait_for("readers to pass what the kill left open", HELD_UP, || {
            let now = kafka::ends(&self.broker.address(), &self.output).ok()?.committed;
            assert_eq!(now.len(), written.len(), "partitions of the output");
            now.iter().zip(written).all(|(committed, written)| committed >= written).then_some(())
        });
    }

    /// Cancels the job, and kills its JobManager when only the terminal entry is missing; then the closer that appends it,
    /// right behind it. Who comes next finds the end.
    ///
    /// # Panics
    /// When that finds something else.
    pub fn die_at_the_end(&mut self) {
        self.steps.arm(Step::BeforeEnd);
        let asking = self.job.ask_beside(&["cancel"]);
        let _ = self.steps.wait_stopped(Step::BeforeEnd, WAIT);
        self.kill_job_manager();
        drop(asking);
        self.steps.arm(Step::Ended);
        self.start_helper(&json!({"close": {"end": "cancelled"}}));
        let _ = self.steps.wait_stopped(Step::Ended, WAIT);
        self.kill_job_manager();
        self.start_helper(&json!("continue"));
        assert_eq!(self.wait_ended(), "Cancelled");
    }

    /// Starts the next generation without TaskManagers.
    fn start_helper(&mut self, start: &serde_json::Value) {
        self.job.set_directive(json!({"id": "r1", "seen": 1, "start": start}));
        self.job.start_generation(0);
    }

    /// Kills a TaskManager of a job that does not restart, at this step, and waits for its end.
    pub fn fail_at(&mut self, step: Step) -> String {
        let stopped = self.stop_at(step);
        self.kill(Victims { task_managers: 1, ..Victims::default() }, Some(stopped));
        self.wait_ended()
    }

    /// Kills all of the job right behind the entry of a checkpoint, and starts it so much later. Waits for nothing.
    pub fn stay_away_behind_an_entry(&mut self, time: Duration) {
        let stopped = self.stop_at(Step::Appended);
        self.kill(Victims { job_manager: true, task_managers: usize::MAX, broker: false }, Some(stopped));
        std::thread::sleep(time);
        self.job.start_generation(self.parallelism);
    }

    /// Makes the next checkpoints fail, until so many more have failed. Their handles are carried by the next that completes (K3),
    /// which is waited for.
    pub fn fail_checkpoints(&self, how_many: u64) {
        self.obstruct(how_many).into_iter().for_each(remove);
        let completed = self.job.status().map_or(0, |status| status.completed_checkpoints);
        self.job.wait_checkpoint(completed);
    }

    /// The same, but something dies while the handles are carried.
    pub fn fail_checkpoints_and_kill(&mut self, how_many: u64, victims: Victims) {
        let attempt = self.attempt();
        let placed = self.obstruct(how_many);
        let killed = Instant::now();
        let doomed = self.kill(victims, None);
        placed.into_iter().for_each(remove);
        self.recover(victims, doomed, attempt);
        println!("kill {}: behind failed checkpoints: {victims:?}: well after {:?}", self.kills, killed.elapsed());
    }

    /// Takes the store away for so long, and waits until a checkpoint is complete behind that.
    pub fn lose_store_for(&self, time: Duration) {
        let before = self.job.status().expect("a status");
        let store = self.s3.as_ref().expect("a store that can be lost");
        store.kill();
        std::thread::sleep(time);
        store.restart();
        let after = self.job.wait_checkpoint(before.completed_checkpoints + 1);
        println!("the store was away for {time:?}: {} attempts before, {} after", before.attempt, after.attempt);
    }

    /// Suspends the broker behind the entry of a checkpoint and for so long; the JobManager may be killed meanwhile.
    pub fn suspend_broker(&mut self, duration: Duration, kills_job_manager: bool) {
        let stopped = self.stop_at(Step::Appended);
        self.broker.signal(Signal::SIGSTOP);
        stopped.go_on();
        std::thread::sleep(duration);
        if kills_job_manager {
            self.kill_job_manager();
            self.job.start_generation(self.parallelism);
            std::thread::sleep(duration);
        }
        self.broker.signal(Signal::SIGCONT);
        let completed = self.job.status().map_or(0, |status| status.completed_checkpoints);
        self.job.wait_checkpoint(completed + 1);
    }

    /// Puts in the way of the next checkpoints what they want to write, and waits until so many have failed. Says what it put.
    fn obstruct(&self, how_many: u64) -> Vec<PathBuf> {
        let before = self.job.status().expect("a status");
        let generation = self.job_directory().join(before.generation.0.to_string());
        let next = before.last_checkpoint.map_or(0, |checkpoint| checkpoint.id.0) + 1;
        let mut obstacles: Vec<PathBuf> = (next..next + 200).map(|id| generation.join(format!("chk-{id}"))).collect();
        obstacles.retain(|path| std::fs::File::create_new(path).is_ok());
        let failed = self.job.wait_status("failed checkpoints", WAIT, |status| {
            status.failed_checkpoints >= before.failed_checkpoints + how_many
        });
        assert_eq!(failed.attempt, before.attempt, "failed checkpoints restart nothing (K3)");
        obstacles
    }

    /// How many times something was killed.
    #[must_use]
    pub fn kills(&self) -> u32 {
        self.kills
    }
}

/// Removes what stood in the way.
fn remove(path: PathBuf) {
    std::fs::remove_file(path).expect("what stood in the way");
}
