-- The database of the first schema, at S1, with an open round in which one client has uploaded.
BEGIN TRANSACTION;
CREATE TABLE rounds (
        place INTEGER PRIMARY KEY,
        round TEXT NOT NULL UNIQUE,
        training TEXT NOT NULL,
        -- the id of the coordinator's request, or ''
        request TEXT NOT NULL,
        -- what S0 asked S1 for, the clients' names, and those of an earlier attempt (JSON)
        asked TEXT NOT NULL,
        names TEXT NOT NULL,
        repeats TEXT NOT NULL,
        -- what else survives a restart, and the times as seconds of the epoch (JSON)
        saved TEXT NOT NULL,
        times TEXT NOT NULL,
        -- the files of the training runs before and after it, and of the result
        before TEXT,
        after TEXT,
        result TEXT
    ) STRICT;
INSERT INTO "rounds" VALUES(1,'1-0000000a','default','','{"round": "1-0000000a", "number": 1, "params": {"method": "mean", "dim": 4, "max_clients": 3, "min_clients": 2, "deadline_s": 600.0, "ring_bits": 0, "fraction_bits": 24, "weights": {}, "weight_cap": 0.3333333333333333}, "session": "", "new_session": true, "start_over": false, "start": "0000000000000000000000000000000000000000000000000000000000000000"}','{"ZC:n(g3xqV&Kb:p3K@17liL(JforP[JR[37UqL3T": "client-1", "2x$#nbyBNhzC/PmGZlpy3BA%54>Bqn2e5IZhwW>{": "client-2", "b@i1pi!92^*2m0syUY0Q)^gPZdP0cHp0Q%f>tTk{": "client-3"}','[]','{"state": "open", "adrift": false, "included": [], "left_out": {}, "excluded": {}, "code": "", "reason": "", "attempt": 0, "setbacks": 0, "computed_here": false, "begun": true, "ran": false}','{"deadline": 87000.0, "retry_at": 0.0, "away_until": null}',NULL,NULL,NULL);
CREATE TABLE trainings (
        -- its name
        training TEXT PRIMARY KEY,
        -- the file of the current training run at S0
        current TEXT,
        -- the latest number that ran, and the clients whose values may have been opened (JSON)
        bound_number INTEGER NOT NULL DEFAULT 0,
        bound_clients TEXT NOT NULL DEFAULT '[]'
    ) STRICT;
CREATE TABLE uploads (
        round TEXT NOT NULL,
        client TEXT NOT NULL,
        -- dealing or upload
        kind TEXT NOT NULL,
        form TEXT NOT NULL,
        -- where its words begin in the round's file, and how many bytes they are
        begin INTEGER NOT NULL,
        size INTEGER NOT NULL,
        -- in place of words
        seed BLOB,
        sha256 BLOB NOT NULL,
        -- when it was stored, in seconds of the epoch
        stored REAL NOT NULL,
        PRIMARY KEY (round, client, kind)
    ) STRICT;
INSERT INTO "uploads" VALUES('1-0000000a','2x$#nbyBNhzC/PmGZlpy3BA%54>Bqn2e5IZhwW>{','upload','seed',0,0,X'00000000000000000000000000000000',X'374708FFF7719DD5979EC875D56CD2286F6D3CF7EC317A3B25632AAB28EC37BB',1.79532432480248785016e+09);
CREATE TABLE verdicts (
        round TEXT NOT NULL,
        client TEXT NOT NULL,
        -- what was tossed for the check of its dealing
        coin BLOB,
        -- 1 if it has passed, 0 if it has failed, NULL while it is not known
        passed INTEGER,
        PRIMARY KEY (round, client)
    ) STRICT;
PRAGMA user_version = 1;
COMMIT;
