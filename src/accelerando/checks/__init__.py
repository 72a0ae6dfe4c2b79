"""The trusted checks, one module per lab. A check never imports learner code: it calls it through a `Submission`."""
