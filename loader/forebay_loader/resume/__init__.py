"""Where a run stands, so that it can be broken off and go on: what a state holds, how it is kept, told and made free of its world."""
