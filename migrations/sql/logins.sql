-- A login for each agent, agent.<agent_id>, and for each host of agents, host.<host>: made and taken away by members of
-- apc_registrar, who can make nothing else by it. Run by `apc migrate` as a superuser, where it is missing; can be run again.
DO $$
BEGIN
    IF to_regrole('apc_registrar') IS NULL THEN
        CREATE ROLE apc_registrar NOLOGIN;
    END IF;
    IF to_regrole('apc_logins') IS NULL THEN
        CREATE ROLE apc_logins NOLOGIN CREATEROLE;
    END IF;
    IF NOT (SELECT rolcreaterole FROM pg_roles WHERE rolname = 'apc_logins') THEN
        ALTER ROLE apc_logins CREATEROLE;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_auth_members WHERE member = to_regrole('apc_logins')
                   AND roleid = to_regrole('apc_agent') AND admin_option) THEN
        GRANT apc_agent TO apc_logins WITH ADMIN OPTION;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_auth_members WHERE member = to_regrole('apc_logins')
                   AND roleid = to_regrole('pg_signal_backend')) THEN
        GRANT pg_signal_backend TO apc_logins;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'logins of agents are not made here (%): an administrator makes them', SQLERRM;
END $$;

CREATE SCHEMA IF NOT EXISTS apc_access;

-- The name of the login of an agent, or of a host, which is given as host/<host>; raises where it would not be one.
CREATE OR REPLACE FUNCTION apc_access.login_of(agent_id text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF agent_id ~ '^host/[a-z0-9][a-z0-9_-]{0,31}$' THEN
        RETURN 'host.' || substr(agent_id, 6);
    END IF;
    IF agent_id !~ '^[A-Za-z0-9][A-Za-z0-9._:-]*$' OR octet_length(agent_id) > 57 THEN
        RAISE EXCEPTION 'no login can be made for agent %: its id has more than 57 characters, or others than A-Z a-z 0-9 . _ : -',
            left(agent_id, 64) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN 'agent.' || agent_id;
END $$;

-- Whether there is such a login; raises when it is more than a member of apc_agent: that one is its administrator's.
CREATE OR REPLACE FUNCTION apc_access.is_ours(login text) RETURNS boolean
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known record;
BEGIN
    SELECT oid, rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls AS is_mighty INTO known
    FROM pg_roles WHERE rolname = login;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF known.is_mighty
        OR (SELECT array_agg(DISTINCT roleid) FROM pg_auth_members WHERE member = known.oid)
            IS DISTINCT FROM ARRAY[to_regrole('apc_agent')::oid]
        OR EXISTS (SELECT FROM pg_auth_members WHERE member = known.oid AND admin_option)
        -- From Postgres 16 on who makes a role is a member of it.
        OR EXISTS (SELECT FROM pg_auth_members WHERE roleid = known.oid AND member <> to_regrole('apc_logins'))
    THEN
        RAISE EXCEPTION 'role % is more, or less, than a member of apc_agent: its administrator changes it', login
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN true;
END $$;

-- Bounds what a login takes from others without meaning to; it may change the times for itself. A limit of connections
-- that an administrator has set stays.
CREATE OR REPLACE FUNCTION apc_access.bound(login text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT rolconnlimit FROM pg_roles WHERE rolname = login) = -1 THEN
        EXECUTE format('ALTER ROLE %I CONNECTION LIMIT 50', login);
        EXECUTE format('ALTER ROLE %I SET lock_timeout = %L', login, '30s');
        EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = %L', login, '15min');
    END IF;
END $$;

-- Makes a login, or gives it another password, as a SCRAM verifier: no password reaches the server or its log.
-- A login may lock its own entry (ALTER ROLE in a transaction that it leaves open): nobody waits for that without end.
CREATE OR REPLACE FUNCTION apc_access.make_login(agent_id text, verifier text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    login constant text := apc_access.login_of(agent_id);
BEGIN
    IF login IS NULL OR verifier IS NULL
        OR verifier !~ '^SCRAM-SHA-256\$[0-9]{4,7}:[A-Za-z0-9+/]{16,64}={0,2}\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}=$'
    THEN
        RAISE EXCEPTION 'the password of a login must be a verifier of SCRAM-SHA-256'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF apc_access.is_ours(login) THEN
        EXECUTE format('ALTER ROLE %I LOGIN PASSWORD %L', login, verifier);
        PERFORM apc_access.bound(login);
        RETURN false;
    END IF;
    EXECUTE format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS '
                   'IN ROLE apc_agent PASSWORD %L', login, verifier);
    PERFORM apc_access.bound(login);
    RETURN true;
END $$;

-- Ends the connections of a login, and what they have locked; how many.
CREATE OR REPLACE FUNCTION apc_access.send_away(agent_id text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    login constant text := apc_access.login_of(agent_id);
BEGIN
    IF NOT coalesce(apc_access.is_ours(login), false) THEN
        RETURN 0;
    END IF;
    RETURN (SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = login);
END $$;

-- Before `end_login`, in its own transaction: nobody gets in while those who are in are sent away. Others call `send_away`
-- meanwhile: an open transaction of the login may hold what this waits for.
CREATE OR REPLACE FUNCTION apc_access.close_login(agent_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    login constant text := apc_access.login_of(agent_id);
BEGIN
    IF NOT coalesce(apc_access.is_ours(login), false) THEN
        RETURN false;
    END IF;
    EXECUTE format('ALTER ROLE %I NOLOGIN PASSWORD NULL', login);
    RETURN true;
END $$;

-- Ends its connections and drops it; one that owns something stays, and cannot log in. Whether it is gone.
CREATE OR REPLACE FUNCTION apc_access.end_login(agent_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    login constant text := apc_access.login_of(agent_id);
BEGIN
    IF NOT coalesce(apc_access.is_ours(login), false) THEN
        RETURN true;
    END IF;
    PERFORM pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE usename = login;
    EXECUTE format('DROP ROLE %I', login);
    RETURN true;
EXCEPTION
    WHEN dependent_objects_still_exist THEN
        RETURN false;
END $$;

-- An agent makes no objects. CREATE RULE, CREATE TRIGGER and others take the strongest locks of a table before they look for
-- the right to: one that waits there keeps everybody waiting.
CREATE OR REPLACE FUNCTION apc_access.refuse_agents() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF starts_with(session_user::text, 'agent.') OR starts_with(session_user::text, 'host.') THEN
        RAISE EXCEPTION '% refused for %: the login of an agent makes and changes no objects of the database',
            TG_TAG, session_user USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;
DROP EVENT TRIGGER IF EXISTS apc_access_agents;
CREATE EVENT TRIGGER apc_access_agents ON ddl_command_start EXECUTE FUNCTION apc_access.refuse_agents();
ALTER EVENT TRIGGER apc_access_agents ENABLE ALWAYS;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA apc_access FROM PUBLIC;

DO $$
DECLARE
    item regprocedure;
BEGIN
    FOR item IN
        SELECT oid FROM pg_proc
        WHERE pronamespace = 'apc_access'::regnamespace AND prorettype <> 'event_trigger'::regtype -- a superuser's
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO apc_logins', item);
    END LOOP;
    GRANT USAGE ON SCHEMA apc_access TO apc_logins, apc_registrar;
    GRANT EXECUTE ON FUNCTION apc_access.make_login(text, text), apc_access.close_login(text),
        apc_access.send_away(text), apc_access.end_login(text) TO apc_registrar;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'logins of agents are made as % (%)', current_user, SQLERRM;
END $$;

-- Logins that an older release has made.
DO $$
DECLARE
    item record;
BEGIN
    SET LOCAL lock_timeout = '2s';
    FOR item IN
        SELECT rolname FROM pg_roles
        WHERE starts_with(rolname::text, 'agent.') AND rolcanlogin AND rolconnlimit = -1
          AND (SELECT array_agg(roleid) FROM pg_auth_members WHERE member = pg_roles.oid)
              = ARRAY[to_regrole('apc_agent')::oid]
    LOOP
        BEGIN
            PERFORM apc_access.bound(item.rolname);
        EXCEPTION
            WHEN lock_not_available THEN
                RAISE NOTICE '% holds its own entry, and keeps its limits: revoke it, or end its connections', item.rolname;
        END;
    END LOOP;
    SET LOCAL lock_timeout = 0;
END $$;
